"""Law 2: one method for training, prefill and decoding."""

import torch
from safetensors.torch import load, save
from torch import Tensor

from regard.core.attention import Attention, State
from regard.core.bias import ScoreBias
from regard.testing.checks.bias import far_curve, far_relative, within
from regard.testing.compare import assert_close, assert_gradients, assert_identical
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
from regard.testing.registry import check, require
from regard.testing.sizes import LONGEST, growing

_STATELESS = ("not supports.state", "refusals")
_NOT_CAUSAL = ("not supports.causal", "refusals")


def start(mechanism: Attention, batch: int, dtype: torch.dtype = torch.float64) -> State:
    return mechanism.initial_state(batch, dtype=dtype, device=here())


def stream(mechanism: Attention, x: Inputs, cut: tuple[int, ...], keep: Tensor | None = None) -> tuple[Tensor, State]:
    """The values and the last state of a sequence given piece by piece."""
    state, out, at = start(mechanism, x.k.shape[0], x.k.dtype), [], 0
    for count in cut:
        piece = None if keep is None else keep[:, at : at + count]
        answer = run(mechanism, x.slots(at, at + count), key_mask=piece, state=state)
        require(answer.state is not None, "no state came back")
        assert answer.state is not None
        state, at = answer.state, at + count
        require(state.length == at, f"state.length is {state.length} after {at} slots")
        out.append(answer.values)
    return torch.cat(out, 2), state


@check(_STATELESS, _NOT_CAUSAL)
def state_splits(subject: Subject) -> None:
    """For every split, forward(x ++ y) equals forward(x) then forward(y, state)."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    whole = run(mechanism, x).values
    for cut in two_way_splits(LENGTH):
        assert_close(stream(mechanism, x, cut)[0], whole, tolerance=1e-10, what=f"pieces of {cut}")
    mechanism = subject.build(True, dtype=torch.float64, max_length=LONG)
    x = draw(mechanism.heads, subject.info, LONG, LONG, 1, "stream").to(torch.float64)
    whole = run(mechanism, x).values
    for cut in ((64, 1, 1, LONG - 66), (100, 50), (7, 128, 15), (1, LONG - 1)):
        assert_close(stream(mechanism, x, cut)[0], whole, tolerance=1e-10, what=f"pieces of {cut}")


@check(_STATELESS, _NOT_CAUSAL, ("not supports.key_mask", "refusals"))
def state_mask(subject: Subject) -> None:
    """A state remembers which of its keys are hidden, when the mask comes with every piece, or with some."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    keep = mask_with_holes(2, LENGTH)
    whole = run(mechanism, x, key_mask=keep).values
    real = keep[:, None, :].expand(-1, 2, -1)
    for cut in ((5, 8), (1,) * LENGTH, (12, 1), (1, 12), (4, 1, 1, 7)):
        out = stream(mechanism, x, cut, keep)[0]
        assert_close(out[real], whole[real], tolerance=1e-10, what=f"masked pieces of {cut}")
    for masked in (0, 1):
        late = keep.clone()
        late[:, slice(6, None) if masked == 0 else slice(0, 6)] = True
        whole, real = run(mechanism, x, key_mask=late).values, late[:, None, :].expand(-1, 2, -1)
        state, out = start(mechanism, 2), []
        for at, (first, stop) in enumerate(((0, 6), (6, LENGTH))):
            piece = late[:, first:stop] if at == masked else None
            answer = run(mechanism, x.slots(first, stop), key_mask=piece, state=state)
            assert answer.state is not None
            state = answer.state
            out.append(answer.values)
        what = f"a mask with piece {masked} only"
        assert_close(torch.cat(out, 2)[real], whole[real], tolerance=1e-10, what=what)


@check(_STATELESS, _NOT_CAUSAL, ("not supports.prefix", "refusals"))
def state_prefix(subject: Subject) -> None:
    """A piece with more keys than queries: all its keys enter the state, its queries are the last of them."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    whole = run(mechanism, x).values
    first = run(mechanism, x.slots(0, 4), state=start(mechanism, 2))
    piece = x.slots(4, 10)
    second = run(mechanism, piece.queries(4), state=first.state)
    third = run(mechanism, x.slots(10, LENGTH), state=second.state)
    assert_close(second.values, whole[:, :, 8:10], tolerance=1e-10, what="2 queries on 6 new keys")
    assert_close(third.values, whole[:, :, 10:], tolerance=1e-10, what="the piece after it")


@check(_STATELESS, _NOT_CAUSAL, ("not supports.bias", "refusals"))
def state_bias(subject: Subject) -> None:
    """A bias means the same distances with a state as without, and `bias_distances` count the state's slots."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    for far in (far_curve(LENGTH), far_relative(LENGTH)):
        whole = run(mechanism, x, bias=far).values
        for cut in ((5, 8), (1,) * LENGTH, (12, 1), (4, 1, 1, 7)):
            state, at = start(mechanism, 2), 0
            for count in cut:
                low, high = mechanism.bias_distances(count, count, state)
                bias = within(far, low, high, slice(at, at + count))
                answer = run(mechanism, x.slots(at, at + count), bias=bias, state=state)
                assert answer.state is not None
                expected = whole[:, :, at : at + count]
                assert_close(answer.values, expected, tolerance=1e-10, what=f"biased pieces of {cut}, at {at}")
                state, at = answer.state, at + count
    table = randn(1, 2, LENGTH, LENGTH, seed="table", dtype=torch.float64)
    whole = run(mechanism, x, bias=ScoreBias(table=table)).values
    for cut in ((5, 8), (1,) * LENGTH, (12, 1)):
        state, at = start(mechanism, 2), 0
        for count in cut:
            stop = at + count
            rows = ScoreBias(table=table[:, :, at:stop, :stop])
            answer = run(mechanism, x.slots(at, stop), bias=rows, state=state)
            assert answer.state is not None
            what = f"pieces of {cut} with a table for every slot, at {at}"
            assert_close(answer.values, whole[:, :, at:stop], tolerance=1e-10, what=what)
            state, at = answer.state, stop


@check(_STATELESS, _NOT_CAUSAL)
def state_immutability(subject: Subject) -> None:
    """A passed state is not modified and stays usable: several continuations grow from it."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    other = subject.inputs(mechanism, seed=1, dtype=torch.float64)
    for recording in (False, True):
        with torch.set_grad_enabled(recording):
            trunk = call(mechanism, x.slots(0, 6), state=start(mechanism, 2)).state
            assert trunk is not None
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
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    whole = run(mechanism, x).values
    for early in (True, False):
        with torch.inference_mode(early):
            state = run(mechanism, x.slots(0, 5), state=start(mechanism, 2)).state
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
        state = start(mechanism, 3)
        state = run(mechanism, x.slots(0, 8), key_mask=None if masked is None else masked[:, :8], state=state).state
        assert state is not None
        late = None if masked is None else masked[:, 8:]
        expected = run(mechanism, x.slots(8, LENGTH), key_mask=late, state=state).values[rows]
        picked = None if late is None else late[rows]
        out = run(mechanism, x.rows(rows).slots(8, LENGTH), key_mask=picked, state=state.select(rows)).values
        assert_close(out, expected, tolerance=1e-12, what=f"rows {rows.tolist()}")
        require(state.select(rows).length == 8, "select changed the length")
    grown = call(mechanism, x.leaves().slots(0, 8), state=start(mechanism, 3)).state
    assert grown is not None
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
                    answer = run(typed, x, state=state)
                    assert answer.state is not None
                    state = answer.state
                formula = typed.state_nbytes(batch, n, dtype)
                what = f"batch {batch}, {n} slots, {dtype}: {state.nbytes} bytes, but the formula says {formula}"
                require(state.nbytes == formula, what)
    beyond = 2 * min(max(subject.size, LENGTH), LONGEST // 4) + 1
    mechanism = subject.build(True, max_length=beyond)
    x = draw(mechanism.heads, subject.info, beyond, beyond, 1, "bytes")
    kept, formula = (
        run(mechanism, x, state=start(mechanism, 1, torch.float32)).state,
        mechanism.state_nbytes(1, beyond, torch.float32),
    )
    require(
        kept is not None and kept.nbytes == formula,
        f"{0 if kept is None else kept.nbytes} bytes after {beyond} slots, not {formula}",
    )
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
    mechanism = subject.build(True)
    x = subject.inputs(mechanism)
    keep = mask_with_holes(2, LENGTH)
    for masked in (False, True) if subject.info.supports.key_mask else (False,):
        early, late = (keep[:, :8], keep[:, 8:]) if masked else (None, None)
        state = run(mechanism, x.slots(0, 8), key_mask=early, state=start(mechanism, 2, torch.float32)).state
        assert state is not None
        loaded = start(mechanism, 2, torch.float32).load(load(save(state.dump()))).map(lambda y: y.to(here()))
        require(loaded.length == state.length, f"length {state.length} was loaded as {loaded.length}")
        require(loaded.nbytes == state.nbytes, f"{state.nbytes} bytes were loaded as {loaded.nbytes}")
        tail = x.slots(8, LENGTH)
        expected = run(mechanism, tail, key_mask=late, state=state).values
        assert_identical(run(mechanism, tail, key_mask=late, state=loaded).values, expected, what="after a file")


@check(_STATELESS, _NOT_CAUSAL)
def state_gradients(subject: Subject) -> None:
    """Gradients pass through a state as they pass through the whole sequence."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64).leaves()
    leaves = x.named()
    way = randn(2, 2, LENGTH, 6, seed="way", dtype=torch.float64)
    total = (call(mechanism, x).values * way).sum()
    wanted = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    state, total, at = start(mechanism, 2), torch.zeros((), dtype=torch.float64, device=here()), 0
    for count in (5, 1, 7):
        answer = call(mechanism, x.slots(at, at + count), state=state)
        total = total + (answer.values * way[:, :, at : at + count]).sum()
        assert answer.state is not None
        state, at = answer.state, at + count
    got = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    named = (dict(zip(leaves, each, strict=True)) for each in (got, wanted))
    assert_gradients(*named, tolerance=1e-9, what="through a state")


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
        state = start(mechanism, 2)
        state = run(mechanism, x.queries(0, 0).keys(0, 9), key_mask=early, state=state).state
        out = run(mechanism, x.keys(9), key_mask=late, state=state)
        assert_close(out.values, expected, tolerance=1e-10, what="9 keys in the state, 4 in the call")
        again = run(mechanism, x.keys(0, 0), state=out.state).values
        assert_close(again, expected, tolerance=1e-10, what="every key in the state")


def same_state(state: State | None, expected: State | None, what: str) -> None:
    """The same number of slots with the same content, to rounding."""
    assert expected is not None
    require(state is not None, f"{what}: no state")
    assert state is not None
    require(state.length == expected.length, f"{what}: {state.length} slots, expected {expected.length}")
    tensors, wanted = state.tensors(), expected.tensors()
    require(tensors.keys() == wanted.keys(), f"{what}: content {sorted(tensors)}, expected {sorted(wanted)}")
    for name, y in wanted.items():
        require(
            tensors[name].shape == y.shape, f"{what}: {name} {tuple(tensors[name].shape)}, expected {tuple(y.shape)}"
        )
        if y.numel():
            assert_close(tensors[name], y, tolerance=1e-12, what=f"{what}, {name}")


@check(_STATELESS, _NOT_CAUSAL, ("not supports.prefix", "refusals"))
def remember(subject: Subject) -> None:
    """Keys without queries leave the state that the whole call leaves, and decoding goes on from it."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64)
    keep = mask_with_holes(2, LENGTH) if subject.info.supports.key_mask else None
    for mask in (None, keep) if keep is not None else (None,):
        whole = run(mechanism, x, key_mask=mask).values
        for first in (0, 4):
            early, new, late = (
                None if mask is None else mask[:, a:b] for a, b in ((0, first), (first, 10), (10, None))
            )
            state = start(mechanism, 2)
            if first:
                state = run(mechanism, x.slots(0, first), key_mask=early, state=state).state
            piece, what = x.slots(first, 10), f"slots {first}:10{'' if mask is None else ', masked'}"
            asked = run(mechanism, piece, key_mask=new, state=state)
            told = run(mechanism, piece.queries(0, 0), key_mask=new, state=state)
            require(told.values.shape == (2, 2, 0, 6), f"values {tuple(told.values.shape)} without queries, {what}")
            same_state(told.state, asked.state, what)
            rest = run(mechanism, x.slots(10, LENGTH), key_mask=late, state=told.state).values
            real = _real(mask, 10)
            assert_close(rest[real], whole[:, :, 10:][real], tolerance=1e-10, what=f"decoding behind {what}")
    mechanism = subject.build(True, dtype=torch.float64, max_length=LONG)
    x = draw(mechanism.heads, subject.info, LONG, LONG, 1, "remembered").to(torch.float64)
    asked = run(mechanism, x, state=start(mechanism, 1))
    told = run(mechanism, x.queries(0, 0), state=start(mechanism, 1))
    same_state(told.state, asked.state, f"{LONG} slots")


def _real(mask: Tensor | None, first: int) -> Tensor:
    """Rows of the queries from `first` on that are real themselves."""
    rows = torch.ones(2, LENGTH, dtype=torch.bool, device=here()) if mask is None else mask
    return rows[:, None, first:].expand(-1, 2, -1)
