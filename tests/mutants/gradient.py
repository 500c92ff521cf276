"""Mutants that get biases or gradients wrong."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Heads
from tests.mutants import mutant
from tests.mutants.toys import ToyCodes, ToyDense, ToyTable, ToyWindow


@mutant("bias_zero")
class BiasReplacesScale(ToyDense):
    """Forgets the scale when there is a bias."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        return logits if bias is None else super().biased(logits * 8**0.5, bias)


@mutant("bias_curve")
class IgnoresBias(ToyDense):
    """Drops the bias."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        return logits


@mutant("bias_curve")
class SubtractsBias(ToyDense):
    """Subtracts the bias."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        return 2 * logits - super().biased(logits, bias)


@mutant("bias_curve")
class BiasOffByOne(ToyDense):
    """Reads the column of the next distance."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        shifted = None if bias is None or bias.curve is None else replace(bias, high=bias.high + 1)
        return super().biased(logits, shifted or bias)


@mutant("bias_relative")
class IgnoresRelative(ToyDense):
    """Drops the part that depends on the query."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        return super().biased(logits, None if bias is None else replace(bias, query=None, relative=None))


@mutant("bias_table")
class AddsBooleans(ToyDense):
    """Adds a boolean table as zeros and ones."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        boolean = bias is not None and bias.table is not None and bias.table.dtype == torch.bool
        return logits + bias.table.to(logits.dtype) if boolean else super().biased(logits, bias)  # type: ignore[union-attr]


@mutant("bias_reach")
class ReachTooShort(ToyWindow):
    """Reads one distance more than it asks for."""

    def bias_distances(self, queries: int, keys: int, state: Any = None) -> tuple[int, int]:
        low, high = super().bias_distances(queries, keys, state)
        return low, max(high - 1, 0)


@mutant("bias_reach")
class ReachTooLong(ToyWindow):
    """Asks for every distance, though it sees a window."""

    def bias_distances(self, queries: int, keys: int, state: Any = None) -> tuple[int, int]:
        return ToyDense.bias_distances(self, queries, keys, state)


@mutant("bias_heads")
class IndexesHeads(ToyDense):
    """Takes the bias of each head by number, where there may be one for all."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        if bias is not None and bias.curve is not None:
            bias = replace(bias, curve=bias.curve[torch.arange(self.heads.count)])
        return super().biased(logits, bias)


@mutant("bias_gradients")
class DetachedBias(ToyDense):
    """Gives the bias no gradient."""

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        return logits + (super().biased(logits, bias) - logits).detach()


@mutant("reference_gradients")
class DetachedNormaliser(ToyDense):
    """Gets the values right and forgets that the normaliser depends on the scores."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        logits = logits.masked_fill(~pairs, float("-inf"))
        top = logits.amax(-1, keepdim=True).detach()
        weight = (logits - top.masked_fill(top.isneginf(), 0)).exp()
        total = weight.sum(-1, keepdim=True).detach()
        return weight / total.masked_fill(total == 0, 1)


@mutant("reference_gradients")
class NoStraightThrough(ToyCodes):
    """Passes no gradient through the choice of a code."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Attended:  # type: ignore[override]
        values, state, losses = super().attend(q, k.detach(), v, **given)
        return Attended(values + 0 * k.sum(), state, losses)


class _RoundsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        return grad.bfloat16().float() if grad.dtype == torch.float32 else grad


@mutant("float32_gradients")
class RoundsGradients(ToyDense):
    """Hands float32 gradients on in bfloat16."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return _RoundsGradient.apply(super().score(q, k))  # type: ignore[return-value]


@mutant("finite_differences")
class QueriesWithoutGradient(ToyDense):
    """Detaches the queries in the algorithm and in the definition alike."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q.detach() + 0 * q, k)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:  # type: ignore[override]
        return super().reference(q.detach(), k, v, **given)


@mutant("finite_differences_of_keys")
class KeysWithoutGradient(ToyDense):
    """Detaches the keys in the algorithm and in the definition alike."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k.detach() + 0 * k)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:  # type: ignore[override]
        return super().reference(q, k.detach(), v, **given)


@mutant("parameter_gradients")
class DeadParameter(ToyTable):
    """Holds a parameter that nothing uses."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.unused = torch.nn.Parameter(torch.zeros(3))
