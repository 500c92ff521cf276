"""Mutants that torch's transforms of functions make wrong without a word."""

from typing import Any

import torch
from torch import Tensor

from regard.core.attention import Attended, Call
from tests.mutants import mutant
from tests.mutants.toys import ToyDense


@torch.library.custom_op("regard_mutants::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operator with a derivative in reverse mode alone, which torch runs below its transforms."""
    return 2 * x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, gradient: 2 * gradient)


@mutant("jvp")
class LosesTangents(ToyDense):
    """Computes its values by an operator without a rule for forward mode: the tangent of the values is 0."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(values=doubled(answer.values / 2))


@mutant("jvp")
class LosesTangentsOfKeys(ToyDense):
    """The same on the way of the keys alone: the tangent is right along queries and values."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, doubled(k / 2), v, call)


@mutant("jvp")
class KeepsWhatRequiresGradient(ToyDense):
    """Drops a derivative that cancels in value wherever nothing requires a gradient: a tangent requires none."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        return logits if logits.requires_grad else logits.detach()


@mutant("func_grad")
class AsksABatchedTensor(ToyDense):
    """The same; below `vmap` a tensor does not say that it requires a gradient."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k if k.requires_grad else k.detach(), v, call)


@mutant("vmap")
class LargestOfAll(ToyDense):
    """Subtracts a constant that it reads below `vmap`, where the elements are beside each other."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        below = torch.func.debug_unwrap(logits)
        return super().normalise(logits / below.detach()[-1].abs().amax().clamp_min(1.0), pairs)


class _Product(torch.autograd.Function):
    """Inner products whose backward pass takes queries and keys for constants."""

    @staticmethod
    def forward(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (x.detach() for x in ctx.saved_tensors)
        return gradient @ k, gradient.mT @ q


@mutant("double_backward")
class ForgetsInBackward(ToyDense):
    """Its first derivative is right; the second leaves out how the products of the first depend on the inputs."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return _Product.apply(q, k) * q.shape[-1] ** -0.5


@mutant("double_backward")
class NoGraphInBackward(ToyDense):
    """Its gradient of the keys has no history: the second derivative has a part that is silently 0."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if k.requires_grad:
            k = k.view_as(k)
            k.register_hook(torch.Tensor.detach)
        return super().attend(q, k, v, call)
