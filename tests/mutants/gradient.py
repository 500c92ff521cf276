"""Mutants that get biases or gradients wrong."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.attention import Attended, Call
from regard.core.options import weight
from tests.mutants import mutant
from tests.mutants.toys import ToyCodes, ToyDense, ToyTable, ToyWindow


@mutant("bias_curve")
class BiasReplacesScale(ToyDense):
    """Forgets the scale when there is a bias."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        return logits if call.bias is None else super().biased(logits * 8**0.5, call)


@mutant("bias_curve")
class BiasOffByOne(ToyDense):
    """Reads the column of the next distance."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        bias = call.bias
        shifted = bias if bias is None or bias.curve is None else replace(bias, high=bias.high + 1)
        return super().biased(logits, call._replace(bias=shifted))


@mutant("bias_relative")
class IgnoresRelative(ToyDense):
    """Drops the part that depends on the query."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        curve = None if call.bias is None else replace(call.bias, query=None, relative=None)
        return super().biased(logits, call._replace(bias=curve))


@mutant("bias_table")
class AddsBooleans(ToyDense):
    """Adds a boolean table as zeros and ones."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        table = None if call.bias is None else call.bias.table
        if table is None or table.dtype != torch.bool:
            return super().biased(logits, call)
        return logits + table.to(logits.dtype)


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
class BiasesTheFirstHead(ToyDense):
    """Takes the bias of each head by number, and none where there is one for all."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        bias = call.bias
        if bias is not None and bias.curve is not None:
            missing = self.heads.count - bias.curve.shape[0]
            call = call._replace(bias=replace(bias, curve=F.pad(bias.curve, (0, 0, 0, missing))))
        return super().biased(logits, call)


@mutant("bias_gradients")
class DetachedBias(ToyDense):
    """Gives the bias no gradient."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        biased = super().biased(logits, call)
        return logits + (biased - logits).detach() + 0 * biased


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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k.detach(), v, call)
        return answer._replace(values=answer.values + 0 * k.sum())


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

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return super().reference(q.detach(), k, v, call)


@mutant("finite_differences_of_keys")
class KeysWithoutGradient(ToyDense):
    """Detaches the keys in the algorithm and in the definition alike."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k.detach() + 0 * k)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return super().reference(q, k.detach(), v, call)


@mutant("parameter_gradients")
class DeadParameter(ToyTable):
    """Holds a parameter that nothing uses."""

    unused: torch.nn.Parameter = weight()

    def setup(self) -> None:
        super().setup()
        self.unused = torch.nn.Parameter(torch.zeros(3))
