"""Law 2, continued: states that fork, are shared, join and go back stay what they were."""

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from regard.core.attention import Attention, State
from regard.core.errors import ShapeError, UnsupportedError
from regard.testing.checks.state import same_state
from regard.testing.compare import assert_close, assert_identical, refused, require
from regard.testing.inputs import LENGTH, Inputs, Subject, here, mask_with_holes, run
from regard.testing.registry import check
from regard.testing.streams import next_state, start, stream

_STATELESS = ("not supports.state", "refusals")
_NOT_CAUSAL = ("not supports.causal", "refusals")


@check(_STATELESS, _NOT_CAUSAL)
def state_where(subject: Subject) -> None:
    """`state.where(rows, other)` goes on in every row from the state that the row was taken from."""
    mechanism = subject.build(True, dtype=torch.float64)
    x, y = (subject.inputs(mechanism, batch=3, seed=seed, dtype=torch.float64) for seed in (0, 1))
    rows, keep = torch.tensor([True, False, True], device=here()), mask_with_holes(3, LENGTH)[:, :8]
    masks = ((None, None), (keep, None), (None, keep)) if subject.info.supports.key_mask else ((None, None),)
    for ours, theirs in masks:
        first, second = (stream(mechanism, z, (8,), key_mask=mask)[1] for z, mask in ((x, ours), (y, theirs)))
        what = f"rows of two states, masked: {ours is not None}, {theirs is not None}"
        try:
            joined = first.where(rows, second)
        except ShapeError:  # a mask may change how much is kept
            require(_sizes(first) != _sizes(second), f"{what}: refused, though both keep the same slots")
            continue
        tail = x.slots(8, LENGTH)
        require(joined.length == 8, f"where made {joined.length} slots of 8")
        out = [run(mechanism, tail, state=state).values for state in (joined, first, second)]
        expected = torch.where(rows[:, None, None, None], *out[1:])
        assert_close(out[0], expected, tolerance=1e-12, what=what)
        longer = next_state(run(mechanism, y.slots(8, 9), state=second))
        refused(f"{what}: states of 8 and 9 slots", ShapeError, first.where, rows, longer)


def _sizes(state: State) -> dict[str, torch.Size]:
    return {name: y.shape for name, y in state.tensors().items() if name != "key_mask"}


@check(_STATELESS, _NOT_CAUSAL)
def state_rewind(subject: Subject) -> None:
    """`state.rewind(n)` is the state before the newest n slots, or refused where sums or picked slots are kept.

    Whatever grew from one another stays usable: the longer state, its sibling, and the one that went back.
    """
    mechanism = subject.build(True, dtype=torch.float64)
    x, other = (subject.inputs(mechanism, seed=seed, dtype=torch.float64) for seed in (0, 1))
    layout = mechanism.layout().values()
    by_slot = all(entry.slots and entry.batched for entry in layout)  # neither sums nor picked slots
    every = by_slot and mechanism.state_nbytes(2, LENGTH, torch.float64) == sum(
        entry.nbytes(2, LENGTH, torch.float64) for entry in layout
    )
    for cut in ((1,) * LENGTH, (LENGTH,), (4, 9)):
        for count in (0, 1, 3, LENGTH):
            newest, left = stream(mechanism, x, cut)[1], LENGTH - count
            what = f"{count} slots of pieces {cut} given back"
            before = {name: y.clone() for name, y in newest.tensors().items()}
            try:
                earlier = newest.rewind(count)
            except UnsupportedError:
                held = every or (by_slot and len(cut) == LENGTH)  # a long piece need not enter a window as a whole
                require(bool(count) and not held, f"{what}: refused, though the slots that these pushed out are there")
                _unchanged(newest, before, f"a state that refused: {what}")
                continue
            expected = stream(mechanism, x, (left,))[1] if left else start(mechanism, 2)
            same_state(earlier, expected, what)
            _goes_on(mechanism, earlier, x, other, left, f"other slots behind {what}")
    _forks(mechanism, x, other)


def _goes_on(mechanism: Attention, state: State, x: Inputs, other: Inputs, at: int, what: str) -> State | None:
    """Slots of another sequence from `at` on, behind a state that is said to hold those of `x` up to there."""
    if at == LENGTH:
        return state
    whole = run(mechanism, Inputs.joined([x.slots(0, at), other.slots(at, LENGTH)], 2)).values
    answer = run(mechanism, other.slots(at, LENGTH), state=state)
    assert_close(answer.values, whole[:, :, at:], tolerance=1e-10, what=what)
    return answer.state


def _forks(mechanism: Attention, x: Inputs, other: Inputs) -> None:
    """A state, its sibling and the one that went back, each of which goes on once the others have."""
    parent = stream(mechanism, x, (4, 3))[1]
    old, sibling = (next_state(run(mechanism, y.slots(7, 10), state=parent)) for y in (x, other))
    try:
        back, farther = old.rewind(3), old.rewind(5)
    except UnsupportedError:
        return
    third = x.rows(torch.tensor([1, 0], device=here()))
    mixed = Inputs.joined([x.slots(0, 7), other.slots(7, LENGTH)], 2)
    living = {
        "the state that went back": (back, x, 7),
        "one that went back farther": (farther, x, 5),
        "the older state": (old, x, 10),
        "its sibling": (sibling, mixed, 10),
        "their parent": (parent, x, 7),
    }
    before = {name: {n: y.clone() for n, y in state.tensors().items()} for name, (state, _, _) in living.items()}
    for turn in (1, 2):
        for name, (state, past, at) in living.items():
            _goes_on(mechanism, state, past, third, at, f"{name}, gone on with in turn {turn}")
        for name, (state, _, _) in living.items():
            for n, y in state.tensors().items():
                if y.numel():
                    assert_identical(y, before[name][n], what=f"{n} of {name}, after turn {turn}")


@check(_STATELESS, _NOT_CAUSAL)
def prefix_reuse(subject: Subject) -> None:
    """The state of one prompt serves many texts that begin with it, alone and as rows of a batch, as if from nothing.

    It is what it was after each of them, and where it could not be gone back to by `rewind` it is the way back itself.
    """
    mechanism = subject.build(True, dtype=torch.float64)
    prompt = subject.inputs(mechanism, batch=1, dtype=torch.float64).slots(0, 8)
    state = stream(mechanism, prompt, (8,))[1]
    before = {name: y.clone() for name, y in state.tensors().items()}
    for seed, (batch, cut) in enumerate(((1, (5,)), (3, (1, 4)), (1, (2, 3)), (2, (1, 1, 3)))):
        rows = torch.zeros(batch, dtype=torch.long, device=here())
        more = subject.inputs(mechanism, batch=batch, seed=seed + 1, dtype=torch.float64).slots(8, LENGTH)
        whole = run(mechanism, Inputs.joined([prompt.rows(rows), more], 2)).values[:, :, 8:]
        out, now = stream(mechanism, more, cut, state=state if batch == 1 else state.select(rows))
        what = f"text {seed + 1}, of {batch} rows, behind one prompt"
        assert_close(out, whole, tolerance=1e-10, what=what)
        with suppress(UnsupportedError):
            now.rewind(sum(cut))
        _unchanged(state, before, f"the prompt's state after {what}")


def _unchanged(state: State, before: Mapping[str, Tensor], what: str) -> None:
    for name, y in state.tensors().items():
        if y.numel():
            assert_identical(y, before[name], what=f"{name} of {what}")
