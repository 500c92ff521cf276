"""Costs as declared, counted without a clock; and `torch.compile`."""

import copy
import math
from typing import Any

import torch

from regard.core import Attention
from regard.testing.compare import assert_close
from regard.testing.counting import Count, count
from regard.testing.inputs import Inputs, Subject, call, draw, run
from regard.testing.registry import Failure, check, require

SHORT_LENGTH, DOUBLE_LENGTH = 512, 1024
"""the lengths between which an exponent is measured; an engine's buffers of 1 MB are full at both"""

EXPONENT_SLACK = 0.2
"""how far a measured exponent may exceed the declared one: constant parts, tiles, logarithms"""


def _costs(subject: Subject, causal: bool, length: int) -> tuple[Count, Count]:
    """Forward alone, and forward with backward, for one head of a mechanism built for this length."""
    mechanism = subject.build(causal, count=1, max_length=length)
    x = draw(mechanism.heads, subject.info, length, length, 1, "cost")
    forward = count(lambda: run(mechanism, x))
    leaves = x.leaves()
    return forward, count(lambda: _step(mechanism, leaves))


def _step(mechanism: Attention, x: Inputs) -> None:
    call(mechanism, x).values.sum().backward()


@check()
def cost(subject: Subject) -> None:
    """Operations and memory grow with the length as `info.time` and `info.memory` say, forward and backward."""
    info = subject.info
    for causal in subject.modes:
        small, large = _costs(subject, causal, SHORT_LENGTH), _costs(subject, causal, DOUBLE_LENGTH)
        for what, one, two in zip(("forward", "forward + backward"), small, large, strict=True):
            time, memory = math.log2(two.work / one.work), math.log2(two.peak / one.peak)
            where = f"between {SHORT_LENGTH} and {DOUBLE_LENGTH} positions, {causal=}"
            require(
                time < info.time + EXPONENT_SLACK, f"{what}: operations grow as length^{time:.2f} {where}: {info.time=}"
            )
            require(
                memory < info.memory + EXPONENT_SLACK,
                f"{what}: memory grows as length^{memory:.2f} {where}: {info.memory=}",
            )
            if info.memory < 2:
                square = DOUBLE_LENGTH * DOUBLE_LENGTH
                require(
                    two.largest < square // 2, f"{what}: a tensor of {two.largest} numbers at {DOUBLE_LENGTH} positions"
                )


@check(("not compiles_whole", "compilation_in_parts"), once=True)
def compilation(subject: Subject) -> None:
    """torch.compile takes the mechanism as one graph, which serves every length; in training too."""
    for causal in subject.modes:
        graphs = _compiled(subject, causal, (24, 200, 77), whole=True)
        require(graphs == 1, f"{graphs} graphs for 24, 200 and 77 positions with dynamic=True, {causal=}")
    _train_compiled(subject, subject.modes[0])


def _train_compiled(subject: Subject, causal: bool) -> None:
    """One graph in training too, with the gradients of the mechanism as it is."""
    mechanism = subject.build(causal).train()
    x = subject.inputs(mechanism).leaves()
    twin = copy.deepcopy(mechanism)
    torch._dynamo.reset()
    compiled: Any = torch.compile(twin, backend="eager", fullgraph=True, dynamic=False)
    wanted, got = call(mechanism, x), call(compiled, x)
    assert_close(got.values, wanted.values, tolerance=1e-6, what=f"compiled in training, {causal=}")
    leaves = x.named()
    grads = [
        torch.autograd.grad(y.values.square().sum(), list(leaves.values()), allow_unused=True) for y in (got, wanted)
    ]
    for name, one, other in zip(leaves, *grads, strict=True):
        if other is not None:
            assert_close(one, other, tolerance=1e-5, what=f"gradient of {name}, compiled in training, {causal=}")


@check(("compiles_whole", "compilation"), once=True)
def compilation_in_parts(subject: Subject) -> None:
    """A mechanism that is declared to break the graph does, and compiles in parts to the same values."""
    for causal in subject.modes:
        graphs = _compiled(subject, causal, (24,), whole=False)
        require(graphs != 1, "info.compiles_whole is False, but there is one graph")


def _compiled(subject: Subject, causal: bool, lengths: tuple[int, ...], *, whole: bool) -> int:
    """Graphs that were made for calls of these lengths, after comparing the values."""
    from torch._dynamo.exc import Unsupported

    mechanism, graphs = subject.build(causal, max_length=max(lengths) + 1), []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(mechanism, backend=backend, fullgraph=whole, dynamic=whole)
    for length in lengths:
        x = draw(mechanism.heads, subject.info, length, length, 1, "compile").map(torch.Tensor.contiguous)
        try:
            got = run(compiled, x).values
        except Unsupported as error:
            raise Failure(f"the graph breaks, {causal=}: {error}") from error
        assert_close(got, run(mechanism, x).values, tolerance=1e-6, what=f"compiled, {length} positions, {causal=}")
    return len(graphs)
