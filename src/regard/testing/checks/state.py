"""Law 2: one method for training, prefill and decoding."""

from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from regard.core.attention import State
from regard.core.bias import ScoreBias
from regard.testing.checks.bias import far_curve, far_relative, within
from regard.testing.compare import assert_close, assert_gradients, assert_identical, require
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    call,
    draw,
    here,
    mask_with_holes,
    randn,
    run,
    two_way_splits,
)
from regard.testing.registry import check
from regard.testing.sizes import LONGEST, growing
from regard.testing.streams import next_state, start, stream

_STATELESS = ("not supports.state", "refusals")
_NOT_CAUSAL = ("not supports.causal", "refusals")


@check(_STATELESS, _NOT_CAUSAL)
def state_splits(subject: Subject) -> None:
    """For every split, forward(x ++ y) equals forward(x) then forward(y, state)."""
    mechanism, x = subject.case(True)
    whole = run(mechanism, x).values
    for cut in two_way_splits(LENGTH):
        assert_close(stream(mechanism, x, cut)[0], whole, tolerance=1e-10, what=f"pieces of {cut}")
    mechanism, x = subject.drawn(True, LONG, "stream", batch=1)
    whole = run(mechanism, x).values
    for cut in ((64, 1, 1, LONG - 66), (100, 50), (7, 128, 15), (1, LONG - 1)):
        assert_close(stream(mechanism, x, cut)[0], whole, tolerance=1e-10, what=f"pieces of {cut}")


@check(_STATELESS, _NOT_CAUSAL, ("not supports.key_mask", "refusals"))
def state_mask(subject: Subject) -> None:
    """A state remembers which of its keys are hidden, when the mask comes with every piece, or with some."""
    mechanism, x = subject.case(True)
    keep = mask_with_holes(2, LENGTH)
    whole, real = run(mechanism, x, key_mask=keep).values, _real(keep, 0)
    for cut in ((5, 8), (1,) * LENGTH, (12, 1), (1, 12), (4, 1, 1, 7)):
        out = stream(mechanism, x, cut, key_mask=keep)[0]
        assert_close(out[real], whole[real], tolerance=1e-10, what=f"masked pieces of {cut}")
    for masked in (0, 1):
        late = keep.clone()
        late[:, slice(6, None) if masked == 0 else slice(0, 6)] = True
        whole, real = run(mechanism, x, key_mask=late).values, _real(late, 0)
        early, rest = (late[:, :6], None) if masked == 0 else (None, late[:, 6:])
        first = run(mechanism, x.slots(0, 6), key_mask=early, state=start(mechanism))
        second = run(mechanism, x.slots(6, LENGTH), key_mask=rest, state=first.state)
        out, what = torch.cat([first.values, second.values], 2), f"a mask with piece {masked} only"
        assert_close(out[real], whole[real], tolerance=1e-10, what=what)


@check(_STATELESS, _NOT_CAUSAL, ("not supports.bias", "refusals"))
def state_bias(subject: Subject) -> None:
    """A bias means the same distances with a state as without, and `bias_distances` count the state's slots."""
    mechanism, x = subject.case(True)
    far = replace(far_relative(LENGTH), curve=far_curve(LENGTH).curve)
    table = ScoreBias(table=randn(1, 2, LENGTH, LENGTH, seed="table", dtype=torch.float64))
    for whole in (far, table):
        values = run(mechanism, x, bias=whole).values
        for cut in ((5, 8), (1,) * LENGTH, (12, 1), (4, 1, 1, 7)):
            state, at = start(mechanism), 0
            for count in cut:
                stop = at + count
                if whole.table is None:
                    low, high = mechanism.bias_distances(count, count, state)
                    bias = within(far, low, high, slice(at, stop))
                else:
                    bias = ScoreBias(table=whole.table[:, :, at:stop, :stop])
                answer = run(mechanism, x.slots(at, stop), bias=bias, state=state)
                what = f"pieces of {cut}, {'biased' if whole is far else 'with a table for every slot'}, at {at}"
                assert_close(answer.values, values[:, :, at:stop], tolerance=1e-10, what=what)
                state, at = next_state(answer), stop


@check(_STATELESS, _NOT_CAUSAL)
def state_immutability(subject: Subject) -> None:
    """A passed state is not modified and stays usable: several continuations grow from it."""
    mechanism, x = subject.case(True)
    other = subject.inputs(mechanism, seed=1, dtype=torch.float64)
    for recording in (False, True):
        with torch.set_grad_enabled(recording):
            trunk = next_state(call(mechanism, x.slots(0, 6), state=start(mechanism)))
            before = {name: y.detach().clone() for name, y in trunk.tensors().items()}
            ours = call(mechanism, x.slots(6, 9), state=trunk)
            theirs = call(mechanism, other.slots(6, 10), state=trunk)
            for name, y in trunk.tensors().items():
                assert_identical(y.detach(), before[name], what=f"{name} of a state that was passed")
            require(trunk.length == 6, f"length of a state that was passed is {trunk.length}, not 6")
            ours_next = call(mechanism, x.slots(9, LENGTH), state=ours.state).values
            theirs_next = call(mechanism, other.slots(10, LENGTH), state=theirs.state).values
        mixed = Inputs.joined([x.slots(0, 6), other.slots(6, LENGTH)], 2)
        for name, inputs, first, second in (("first", x, ours, ours_next), ("second", mixed, theirs, theirs_next)):
            grown = torch.cat([first.values, second], 2).detach()
            expected = run(mechanism, inputs).values[:, :, 6:]
            assert_close(grown, expected, tolerance=1e-10, what=f"{name} continuation of one state, {recording=}")


@check(_STATELESS, _NOT_CAUSAL)
def state_inference(subject: Subject) -> None:
    """A state from inference mode continues outside of it, and the reverse."""
    mechanism, x = subject.case(True)
    whole = run(mechanism, x).values
    for early in (True, False):
        with torch.inference_mode(early):
            state = run(mechanism, x.slots(0, 5), state=start(mechanism)).state
        with torch.inference_mode(not early):
            middle = run(mechanism, x.slots(5, 6), state=state)
            last = run(mechanism, x.slots(6, LENGTH), state=middle.state)
            out = torch.cat([middle.values, last.values], 2)
        what = f"inference mode {'before' if early else 'after'} position 5"
        assert_close(out.clone(), whole[:, :, 5:], tolerance=1e-10, what=what)


@check(_STATELESS, _NOT_CAUSAL)
def state_select(subject: Subject) -> None:
    """`state.select(rows)` is the state of those rows, in that order, repeats allowed; `detach` cuts the graph."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, batch=3, dtype=torch.float64)
    rows = torch.tensor([2, 0, 0, 1], device=here())
    keep = mask_with_holes(3, LENGTH) if subject.info.supports.key_mask else None
    for masked in (None, keep):
        state = stream(mechanism, x, (8,), key_mask=masked)[1]
        late = None if masked is None else masked[:, 8:]
        expected = run(mechanism, x.slots(8, LENGTH), key_mask=late, state=state).values[rows]
        picked = None if late is None else late[rows]
        out = run(mechanism, x.rows(rows).slots(8, LENGTH), key_mask=picked, state=state.select(rows)).values
        assert_close(out, expected, tolerance=1e-12, what=f"rows {rows.tolist()}")
        require(state.select(rows).length == 8, "select changed the length")
    grown = stream(mechanism, x.leaves(), (8,), how=call)[1]
    cut = grown.detach()
    require(not any(y.requires_grad for y in cut.tensors().values()), "detach left a gradient")
    require(cut.length == grown.length, "detach changed the length")


@check(_STATELESS, _NOT_CAUSAL)
def state_bytes(subject: Subject) -> None:
    """`state.nbytes` is the stated formula, and grows as `info.state` says; no n x n, no expanded heads."""
    for dtype in (torch.float32, torch.bfloat16):
        typed = subject.build(True, dtype=dtype, max_length=LONG)
        for batch in (1, 3):
            for n in (0, 1, 5, LENGTH, 40):
                state = start(typed, batch, dtype)
                if n:
                    x = draw(typed.heads, subject.info, n, n, batch, "bytes").to(dtype)
                    state = next_state(run(typed, x, state=state))
                formula = typed.state_nbytes(batch, n, dtype)
                what = f"batch {batch}, {n} slots, {dtype}: {state.nbytes} bytes, but the formula says {formula}"
                require(state.nbytes == formula, what)
    beyond = 2 * min(max(subject.size, LENGTH), LONGEST // 4) + 1
    mechanism = subject.build(True, max_length=beyond)
    x = draw(mechanism.heads, subject.info, beyond, beyond, 1, "bytes")
    kept = next_state(run(mechanism, x, state=start(mechanism, 1, torch.float32)))
    formula = mechanism.state_nbytes(1, beyond, torch.float32)
    require(kept.nbytes == formula, f"{kept.nbytes} bytes after {beyond} slots, not {formula}")
    found = ""
    for first in growing(50, subject.size):
        found = _growth(subject, first)
        if not found:
            break
    require(not found, found)


def _growth(subject: Subject, first: int) -> str:
    """What is wrong about the bytes of a state with `first` slots, twice and three times as many; empty: nothing."""
    lengths, name = (first, 2 * first, 3 * first), subject.info.state
    mechanism = subject.build(True, max_length=lengths[2])

    def most(n: int) -> int:
        """A state of blocks breathes, as far as its blocks are long."""
        return max(mechanism.state_nbytes(1, m, torch.float32) for m in range(n - first + 1, n + 1))

    if name == "constant":
        at = [mechanism.state_nbytes(1, n, torch.float32) for n in (1, *lengths)]
        return "" if len(set(at)) == 1 else f"state={name!r}, but 1 and {lengths} slots take {at} bytes"
    at = [most(n) for n in lengths]
    if name == "window":
        return "" if at[1] == at[2] else f"state={name!r}, but up to {lengths} slots take at most {at} bytes"
    if not at[0] < at[1] < at[2]:
        return f"state={name!r}, but up to {lengths} slots take at most {at} bytes"
    return "" if at[2] <= 3.5 * at[0] else f"up to {lengths} slots take at most {at} bytes: more than linear"


@check(_STATELESS, _NOT_CAUSAL)
def state_file(subject: Subject) -> None:
    """A state written to safetensors and loaded by a new initial state continues identically."""
    mechanism, x = subject.case(True, torch.float32)
    keep = mask_with_holes(2, LENGTH)
    for masked in (False, True) if subject.info.supports.key_mask else (False,):
        early, late = (keep[:, :8], keep[:, 8:]) if masked else (None, None)
        state = next_state(run(mechanism, x.slots(0, 8), key_mask=early, state=start(mechanism, 2, torch.float32)))
        loaded = start(mechanism, 2, torch.float32).load(load(save(state.dump()))).map(lambda y: y.to(here()))
        require(loaded.length == state.length, f"length {state.length} was loaded as {loaded.length}")
        require(loaded.nbytes == state.nbytes, f"{state.nbytes} bytes were loaded as {loaded.nbytes}")
        tail = x.slots(8, LENGTH)
        expected = run(mechanism, tail, key_mask=late, state=state).values
        assert_identical(run(mechanism, tail, key_mask=late, state=loaded).values, expected, what="after a file")


@check(_STATELESS, _NOT_CAUSAL)
def state_gradients(subject: Subject) -> None:
    """Gradients pass through a state as they pass through the whole sequence."""
    mechanism, x = subject.case(True)
    leaves = x.leaves().named()
    way, grads = randn(2, 2, LENGTH, 6, seed="way", dtype=torch.float64), []
    for values in (stream(mechanism, x, (5, 1, 7), how=call)[0], call(mechanism, x).values):
        of_leaves = torch.autograd.grad((values * way).sum(), list(leaves.values()), allow_unused=True)
        grads.append(dict(zip(leaves, of_leaves, strict=True)))
    assert_gradients(*grads, tolerance=1e-9, what="through a state")


@check(_STATELESS, ("not supports.bidirectional", "state_splits"), ("not supports.cross", "refusals"))
def state_of_source(subject: Subject) -> None:
    """The state of a cross-attention source, computed once, serves queries later and can grow."""
    mechanism = subject.build(False, dtype=torch.float64)
    x = subject.inputs(mechanism, queries=5, keys=LENGTH, dtype=torch.float64)
    whole = run(mechanism, x).values
    keep = mask_with_holes(2, LENGTH) if subject.info.supports.key_mask else None
    for mask in (None, keep):
        expected = whole if mask is None else run(mechanism, x, key_mask=mask).values
        early, late = (None, None) if mask is None else (mask[:, :9], mask[:, 9:])
        state = start(mechanism)
        state = run(mechanism, x.queries(0, 0).keys(0, 9), key_mask=early, state=state).state
        out = run(mechanism, x.keys(9), key_mask=late, state=state)
        assert_close(out.values, expected, tolerance=1e-10, what="9 keys in the state, 4 in the call")
        again = run(mechanism, x.keys(0, 0), state=out.state).values
        assert_close(again, expected, tolerance=1e-10, what="every key in the state")


def same_state(state: State, expected: State, what: str) -> None:
    """The same number of slots with the same content, to rounding."""
    require(state.length == expected.length, f"{what}: {state.length} slots, expected {expected.length}")
    tensors, wanted = state.tensors(), expected.tensors()
    require(tensors.keys() == wanted.keys(), f"{what}: content {sorted(tensors)}, expected {sorted(wanted)}")
    for name, y in wanted.items():
        got = tensors[name]
        require(got.shape == y.shape, f"{what}: {name} {tuple(got.shape)}, expected {tuple(y.shape)}")
        if y.numel():
            assert_close(got, y, tolerance=1e-12, what=f"{what}, {name}")


@check(_STATELESS, _NOT_CAUSAL, ("not supports.prefix", "refusals"))
def remember(subject: Subject) -> None:
    """Keys without queries leave the state that the whole call leaves, and decoding goes on from it."""
    mechanism, x = subject.case(True)
    keep = mask_with_holes(2, LENGTH) if subject.info.supports.key_mask else None
    for mask in (None, keep) if keep is not None else (None,):
        whole = run(mechanism, x, key_mask=mask).values
        for first in (0, 4):
            early, new, late = (
                None if mask is None else mask[:, a:b] for a, b in ((0, first), (first, 10), (10, None))
            )
            state = start(mechanism)
            if first:
                state = run(mechanism, x.slots(0, first), key_mask=early, state=state).state
            piece, what = x.slots(first, 10), f"slots {first}:10{'' if mask is None else ', masked'}"
            asked = run(mechanism, piece, key_mask=new, state=state)
            told = run(mechanism, piece.queries(0, 0), key_mask=new, state=state)
            require(told.values.shape == (2, 2, 0, 6), f"values {tuple(told.values.shape)} without queries, {what}")
            same_state(next_state(told), next_state(asked), what)
            rest = run(mechanism, x.slots(10, LENGTH), key_mask=late, state=told.state).values
            real = _real(mask, 10)
            assert_close(rest[real], whole[:, :, 10:][real], tolerance=1e-10, what=f"decoding behind {what}")
    mechanism, x = subject.drawn(True, LONG, "remembered", batch=1)
    asked = run(mechanism, x, state=start(mechanism, 1))
    told = run(mechanism, x.queries(0, 0), state=start(mechanism, 1))
    same_state(next_state(told), next_state(asked), f"{LONG} slots")


def _real(mask: Tensor | None, first: int) -> Tensor:
    """Rows of the queries from `first` on that are real themselves."""
    rows = torch.ones(2, LENGTH, dtype=torch.bool, device=here()) if mask is None else mask
    return rows[:, None, first:].expand(-1, 2, -1)
