"""The loss of float32 on given inputs, whatever the processor: the yardstick of float32 tolerances.

An algorithm rounds elsewhere and adds up in another order than its definition, and every processor does both in its own
way. How far that moves a result depends on the inputs: a quotient whose denominator is near 0, or the gradient of one
number that is a sum of n^2 terms of both signs, loses digits in any order. So the definition is evaluated in float32
several times, each time with every input and every weight moved by at most one ulp and every sum taken term after term
in another random order, and compared with its float64 value on the inputs as they are. Random orders stand for those of
all processors, and term after term loses most: vector units add in parallel lanes, which shortens the chains.

An algorithm may lose `LOSS_MULTIPLE` times what the definition lost. That scales with the unit in the last place, so
numbers that are rounded to bfloat16 or TF32 anywhere on the way, 2^15 and 2^13 times as coarsely, stand out on any
inputs.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.core.attention import Attention, generator
from regard.testing.compare import assert_close, largest_error
from regard.testing.inputs import Inputs, as_queries, exact_copy

Evaluate = Callable[[Attention, Inputs], Mapping[str, Tensor]]
"""results of the definition by name, in the dtype of the mechanism and the inputs that it is given"""

DRAWS = 12
LOSS_MULTIPLE = 4
"""two bits, for what an algorithm rounds more often than its definition: maxima, chunks and states that are rescaled.
Errors of ill-conditioned results are close to normal; against the largest of 12 draws of the definition, one that loses
as much exceeds it with probability 1e-5, one that loses twice as much with 3e-3, a hundred times as much with 0.94."""

HOPELESS_ERROR = 1e-2
"""an allowed error, of the largest magnitude, at which the inputs say nothing about an algorithm"""


class Loss:
    """The loss of a definition in float32 on given inputs: the largest error of each result over some draws.

    Args:
        evaluate: the definition.
        mechanism: with float32 weights.
        x: float32 inputs.
        exact: the results of `evaluate` in float64.
    """

    def __init__(self, evaluate: Evaluate, mechanism: Attention, x: Inputs, exact: Mapping[str, Tensor]) -> None:
        self.draws = 0
        self.largest = dict.fromkeys(exact, 0.0)
        self._evaluate, self._mechanism, self._x, self._exact = evaluate, mechanism, x, exact

    def draw(self) -> None:
        """Evaluate once more."""
        random = generator(0, "conditioning", self.draws)
        other = copy.deepcopy(self._mechanism)
        with torch.no_grad():
            for weight in (*other.parameters(), *other.buffers()):
                weight.copy_(moved(weight, random))
        x = self._x.map(lambda y: moved(y.detach(), random))
        if other.info.shares_query_key:
            x = x.replaced(q=as_queries(x.k, other.heads, x.q.shape[2]))
        with TermAfterTerm(random):
            results = self._evaluate(other, x)
        for name, exact in self._exact.items():
            self.largest[name] = max(self.largest[name], largest_error(results[name], exact))
        self.draws += 1


def assert_float32(
    actual: Mapping[str, Tensor], evaluate: Evaluate, mechanism: Attention, x: Inputs, *, floor: float, what: str
) -> None:
    """Require that float32 results err by at most `floor`, or by `LOSS_MULTIPLE` times what the definition loses.

    Args:
        actual: the results under test, by the names of `evaluate`.
        evaluate: the definition, called with copies of the mechanism in both precisions.
        mechanism: with float32 weights.
        x: float32 inputs.
        floor: an error that is always allowed, relative to the largest magnitude of a result.
        what: one phrase for the message.

    Raises:
        AssertionError: as `assert_close`, with the allowed error and where it comes from; or inputs on which nothing
            can be said.
    """
    exact = evaluate(exact_copy(mechanism), x.to(torch.float64))
    loss = Loss(evaluate, mechanism, x, exact)
    for name, wanted in exact.items():
        error = largest_error(actual[name], wanted)
        while error > max(floor, LOSS_MULTIPLE * loss.largest[name]) and loss.draws < DRAWS:
            loss.draw()
        lost = loss.largest[name]
        if error > floor and LOSS_MULTIPLE * lost > HOPELESS_ERROR:
            raise AssertionError(
                f"{name}, {what}: error {error:.1e}, but in float32 the definition itself loses {lost:.1e} of the "
                f"largest magnitude on these inputs: they are too ill-conditioned to judge an algorithm"
            )
        source = (
            f"the larger of {floor:.0e} and {LOSS_MULTIPLE} times {lost:.1e}, the most that the definition lost in "
        )
        source += f"{loss.draws} draws of one-ulp changes and orders of summation"
        allowed = max(floor, LOSS_MULTIPLE * lost)
        assert_close(actual[name].double(), wanted, tolerance=allowed, what=f"{name}, {what}", source=source)


def moved(x: Tensor, random: torch.Generator) -> Tensor:
    """Floating numbers moved to the one above, the one below, or not at all; what is 0, infinite or counts stays."""
    if not x.is_floating_point():
        return x
    way = torch.randint(-1, 2, x.shape, generator=random).to(x.device)
    return torch.where((x == 0) | x.isinf() | (way == 0), x, torch.nextafter(x, way * math.inf))


class TermAfterTerm(TorchDispatchMode):
    """Takes sums, means and products of matrices of float32 numbers term after term, in a random order."""

    def __init__(self, random: torch.Generator) -> None:
        super().__init__()
        self._random = random

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        aten, kwargs = torch.ops.aten, kwargs or {}
        if func not in (aten.bmm.default, aten.mm.default, aten.sum.dim_IntList, aten.mean.dim):
            return func(*args, **kwargs)
        x = args[0]
        if x.dtype != torch.float32 or not x.dim() or kwargs:
            return func(*args, **kwargs)
        if func in (aten.bmm.default, aten.mm.default):
            y = args[1]
            out = x.new_zeros(*x.shape[:-1], y.shape[-1])
            for at in self._order(x.shape[-1]):
                out.addcmul_(x[..., at, None], y[..., at, None, :])
            return out
        axes = sorted(axis % x.dim() for axis in args[1] or range(x.dim()))
        terms = x.movedim(axes, list(range(len(axes)))).flatten(0, len(axes) - 1)
        out = x.new_zeros(terms.shape[1:])
        for at in self._order(len(terms)):
            out += terms[at]
        if func is aten.mean.dim:
            out /= len(terms)
        for axis in axes if args[2:3] == (True,) else ():
            out = out.unsqueeze(axis)
        return out

    def _order(self, terms: int) -> list[int]:
        return torch.randperm(terms, generator=self._random).tolist()
