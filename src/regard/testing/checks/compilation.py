"""`torch.compile`: whole graphs, that serve every length, in training and behind a state too."""

import copy
from typing import Any

import torch

from regard.core.attention import Attended, Attention, State
from regard.testing.compare import Failure, assert_close, require
from regard.testing.inputs import Inputs, Subject, call, draw, here, run
from regard.testing.registry import check

LENGTHS = (24, 200, 77)
"""of calls that one graph serves; multiples of a sample's blocks, and not"""
PAST = 5
"""slots before compiled steps"""
STEPS = 2
"""the second of which goes on from what the first one kept"""


@check(("not compiles_whole", "compilation_in_parts"), once=True)
def compilation(subject: Subject) -> None:
    """torch.compile takes the mechanism as one graph, which serves every length; in training too."""
    for causal in subject.modes:
        graphs = _compiled(subject, causal, LENGTHS, whole=True)
        first, *others = LENGTHS
        require(graphs == 1, f"{graphs} graphs for {first}, {others[0]} and {others[1]} positions, {causal=}")
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


@check(
    ("not compiles_whole", "compilation_in_parts"),
    ("not supports.state", "refusals"),
    ("not supports.causal", "refusals"),
    once=True,
)
def compilation_behind_a_state(subject: Subject) -> None:
    """torch.compile takes a decoding step as one graph too, and goes on from its own state as the mechanism does."""
    mechanism = subject.build(True, max_length=2 * PAST)
    uncalled = copy.deepcopy(mechanism)  # whatever a first call keeps for later ones is made inside of the graph
    x = draw(mechanism.heads, subject.info, PAST + STEPS, PAST + STEPS, 1, "compile")
    before = run(mechanism, x.slots(0, PAST), state=mechanism.initial_state(1, device=here())).state
    torch._dynamo.reset()
    compiled: Any = torch.compile(uncalled, backend="eager", fullgraph=True, dynamic=True)
    states = before, before
    for at in range(PAST, PAST + STEPS):
        step = x.slots(at, at + 1).map(torch.Tensor.contiguous)
        both = zip((compiled, mechanism), states, strict=True)
        got, wanted = (_graph(each, step, "behind a state", state=state) for each, state in both)
        assert got.state is not None
        assert wanted.state is not None
        what = f"compiled, one position behind {at}"
        assert_close(got.values, wanted.values, tolerance=1e-6, what=what)
        require(got.state.length == wanted.state.length, f"{what}: the state counts {got.state.length} slots")
        ours = got.state.tensors()
        for name, kept in wanted.state.tensors().items():
            require(ours[name].shape == kept.shape, f"{what}: {name} of the state is {tuple(ours[name].shape)}")
            if kept.numel():  # a state may drop what it kept
                assert_close(ours[name], kept, tolerance=1e-6, what=f"{what}: {name} of the state")
        states = got.state, wanted.state


def _compiled(subject: Subject, causal: bool, lengths: tuple[int, ...], *, whole: bool) -> int:
    """Graphs that were made for calls of these lengths, after comparing the values."""
    mechanism, graphs = subject.build(causal, max_length=max(lengths) + 1), []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled: Any = torch.compile(mechanism, backend=backend, fullgraph=whole, dynamic=whole)
    for length in lengths:
        x = draw(mechanism.heads, subject.info, length, length, 1, "compile").map(torch.Tensor.contiguous)
        got = _graph(compiled, x, f"{causal=}").values
        assert_close(got, run(mechanism, x).values, tolerance=1e-6, what=f"compiled, {length} positions, {causal=}")
        if whole and len(graphs) > 1:
            break
    return len(graphs)


def _graph(compiled: Attention, x: Inputs, where: str, state: State | None = None) -> Attended:
    """The answer of a compiled mechanism."""
    from torch._dynamo.exc import Unsupported

    try:
        return run(compiled, x, state=state)
    except Unsupported as error:
        raise Failure(f"the graph breaks, {where}: {error}") from error
