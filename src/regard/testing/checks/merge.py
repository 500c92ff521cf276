"""Parts of one softmax: values and log-sum-exp over disjoint keys; queries apart from one another."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention, accumulation_dtype, merge
from regard.core.bias import ScoreBias
from regard.testing.checks.bias import far_curve
from regard.testing.compare import assert_close, assert_gradients, largest_error, require
from regard.testing.inputs import LENGTH, Inputs, Subject, call, definition, here, mask_with_holes, randn, run
from regard.testing.registry import check
from regard.testing.streams import lse_of, start, stream

_CUT = 5
"""keys of the first part"""


@check(("not mergeable", "refusals"))
def mergeable(subject: Subject) -> None:
    """Values and log-sum-exp over disjoint keys merge into those over all of them, and so do their gradients."""
    supports = subject.info.supports
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        x = subject.inputs(mechanism, dtype=torch.float64).leaves()
        for bias in (None, far_curve(LENGTH)) if supports.bias else (None,):
            what = f"{causal=}{'' if bias is None else ', biased'}"
            whole = call(mechanism, x, bias=bias, lse=True)
            plain = run(mechanism, x, bias=bias).values
            assert_close(whole.values.detach(), plain, tolerance=1e-12, what=f"values beside a log-sum-exp, {what}")
            masks = (mask_with_holes(2, LENGTH), torch.arange(LENGTH, device=here()).expand(2, -1) < _CUT)
            for keep in masks if supports.key_mask and (supports.bias or not x.of_keys) else ():
                parts = [_only(mechanism, x, mask, bias) for mask in (keep, ~keep)]
                _require_merged(parts, whole, x, f"complementary masks, {what}")
            for at in (_CUT, _CUT + 3) if causal and supports.prefix else (_CUT,) if causal else ():
                late = x.queries(at)
                first = late.keys(0, _CUT).replaced(**late.of_keys)  # those of later slots may act on these keys
                front = call(mechanism, first, bias=bias, query_start=at, lse=True)
                back = call(mechanism, late.keys(_CUT), bias=bias, lse=True)
                rest = Attended(whole.values[:, :, at:], lse=lse_of(whole)[:, :, at:])
                _require_merged([front, back], rest, x, f"{_CUT} keys before, queries from {at} on, {what}")


def _only(mechanism: Attention, x: Inputs, keep: Tensor, bias: ScoreBias | None) -> Attended:
    """The part of some of the keys. Where hidden keys would change their inputs too, a table of logits leaves them."""
    if not x.of_keys:
        return call(mechanism, x, key_mask=keep, bias=bias, lse=True)
    table = keep[:, None, None].expand(-1, 1, x.q.shape[2], -1)
    return call(mechanism, x, bias=replace(bias or ScoreBias(), table=table), lse=True)


def _require_merged(parts: Sequence[Attended], whole: Attended, x: Inputs, what: str) -> None:
    values, lse = merge([(part.values, lse_of(part)) for part in parts])
    assert_close(lse.detach(), lse_of(whole).detach(), tolerance=1e-10, what=f"log-sum-exp, {what}")
    assert_close(values.detach(), whole.values.detach(), tolerance=1e-10, what=f"values, {what}")
    leaves, way = x.named(), randn(*values.shape, seed="way", dtype=torch.float64)
    grads = [
        torch.autograd.grad((y * way).sum(), list(leaves.values()), retain_graph=True, materialize_grads=True)
        for y in (values, whole.values)
    ]
    got, wanted = (dict(zip(leaves, each, strict=True)) for each in grads)
    assert_gradients(got, wanted, tolerance=1e-9, what=what)


@check(("not mergeable", "refusals"), ("not supports.causal", "query_pieces"))
def keys_before(subject: Subject) -> None:
    """Where keys end before the queries, masks and states act as in the definition and as in the whole call."""
    supports = subject.info.supports
    mechanism, x = subject.case(True)
    for keep in (None, mask_with_holes(2, LENGTH)) if supports.key_mask else (None,):
        whole, early, late = run(mechanism, x, key_mask=keep, lse=True), None, None
        if keep is not None:
            early, late = keep[:, :_CUT], keep[:, _CUT:]
        for at in (_CUT, _CUT + 3) if supports.prefix else (_CUT,):
            asked = x.queries(at)
            front = asked.keys(0, _CUT).replaced(**_neutral_behind(subject, asked, keep))
            what = f"{_CUT} keys before, queries from {at} on{'' if keep is None else ', masked'}"
            got = run(mechanism, front, key_mask=early, query_start=at, lse=True)
            expected = definition(mechanism, front, key_mask=early, query_start=at)
            assert_close(got.values, expected, tolerance=1e-10, what=f"values, {what}")
            back = run(mechanism, asked.keys(_CUT), key_mask=late, lse=True)
            values, lse = merge([(part.values, lse_of(part)) for part in (got, back)])
            assert_close(values, whole.values[:, :, at:], tolerance=1e-10, what=f"merged values, {what}")
            assert_close(lse, lse_of(whole)[:, :, at:], tolerance=1e-10, what=f"merged log-sum-exp, {what}")
            if supports.state:
                _behind_a_state(mechanism, x, front, got, at, keep, what)


def _neutral_behind(subject: Subject, x: Inputs, keep: Tensor | None) -> dict[str, Tensor]:
    """Inputs of keys, neutral where the mask hides those behind the first part, of which its own mask knows nothing."""
    if keep is None:
        return x.of_keys
    hidden = ~keep[:, None, :, None] & (torch.arange(LENGTH, device=here()) >= _CUT)[:, None]
    return {name: y.masked_fill(hidden, subject.info.inputs[name].neutral) for name, y in x.of_keys.items()}


def _behind_a_state(
    mechanism: Attention, x: Inputs, front: Inputs, expected: Attended, at: int, keep: Tensor | None, what: str
) -> None:
    """The same keys in a state and a call, and then the slots that follow them."""
    first, new, late = (None if keep is None else keep[:, a:b] for a, b in ((0, 3), (3, _CUT), (_CUT, None)))
    state = run(mechanism, x.slots(0, 3), key_mask=first, state=start(mechanism)).state
    rest = front.keys(3).replaced(k=front.k[:, :, 3:], v=front.v[:, :, 3:])
    got = run(mechanism, rest, key_mask=new, query_start=at, state=state, lse=True)
    assert_close(got.values, expected.values, tolerance=1e-10, what=f"values, {what}, 3 of them in a state")
    assert_close(lse_of(got), lse_of(expected), tolerance=1e-10, what=f"log-sum-exp, {what}, 3 of them in a state")
    require(got.state is not None and got.state.length == _CUT, f"the state does not hold {_CUT} slots, {what}")
    after = run(mechanism, x.slots(_CUT, LENGTH), key_mask=late, state=got.state).values
    whole = run(mechanism, x, key_mask=keep).values[:, :, _CUT:]
    assert_close(after, whole, tolerance=1e-10, what=f"the slots behind them, {what}, 3 of them in a state")


@check(("not mergeable", "refusals"))
def log_sum_exp(subject: Subject) -> None:
    """The log-sum-exp has at least float32, is -inf for a query without keys, the same with a state or dropout."""
    supports = subject.info.supports
    for causal in subject.modes:
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            mechanism = subject.build(causal, dtype=dtype)
            lse = lse_of(run(mechanism, subject.inputs(mechanism, dtype=dtype), lse=True))
            require(lse.shape == (2, 2, LENGTH), f"the log-sum-exp has shape {tuple(lse.shape)}, {dtype}")
            require(lse.dtype == accumulation_dtype(dtype), f"the log-sum-exp of {dtype} has {lse.dtype}")
            nothing = subject.inputs(mechanism, dtype=dtype).slots(0, 0)
            lse = lse_of(run(mechanism, nothing, lse=True))
            require(lse.shape == (2, 2, 0), f"the log-sum-exp of an empty call has shape {tuple(lse.shape)}, {dtype}")
            require(lse.dtype == accumulation_dtype(dtype), f"the log-sum-exp of an empty {dtype} call has {lse.dtype}")
        mechanism = subject.build(causal, dtype=torch.float64)
        x = subject.inputs(mechanism, dtype=torch.float64)
        if supports.key_mask:
            keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
            keep[1] = False
            empty = lse_of(run(mechanism, x, key_mask=keep, lse=True))[1]
            require(bool(empty.isneginf().all()), f"{empty.max().item():.3g} is the log-sum-exp of no keys, {causal=}")
        if supports.dropout:
            whole = lse_of(run(mechanism, x, lse=True))
            dropping = subject.build(causal, dtype=torch.float64, dropout=0.5).train()
            assert_close(lse_of(run(dropping, x, lse=True)), whole, tolerance=1e-10, what=f"with dropout, {causal=}")
        if causal and supports.state:
            pieces = stream(mechanism, x, (_CUT, 1, LENGTH - _CUT - 1), lse=True)[0]
            assert_close(pieces, lse_of(run(mechanism, x, lse=True)), tolerance=1e-10, what="log-sum-exp of pieces")


_NOT_CROSS = (("not supports.bidirectional", "refusals"), ("not supports.cross", "refusals"))


@check(*_NOT_CROSS, ("mixes_queries", "queries_mix"))
def query_pieces(subject: Subject) -> None:
    """Queries of another sequence than the keys are independent: any split of them gives the rows of the whole."""
    mechanism = subject.build(False, dtype=torch.float64)
    x = subject.inputs(mechanism, queries=9, keys=LENGTH, dtype=torch.float64)
    biases: list[ScoreBias | None] = [None]
    if subject.info.supports.bias:  # by distance, from where the queries stand
        biases.append(ScoreBias(high=8, curve=randn(2, 9 + LENGTH - 1, seed="curve", dtype=torch.float64)))
    for bias in biases:
        whole = run(mechanism, x, bias=bias).values
        for first, stop in ((0, 9), (0, 4), (4, 9), (3, 4), (8, 9)):
            piece = run(mechanism, x.queries(first, stop), query_start=first, bias=bias).values
            what = f"the queries {first}:{stop} of 9 alone{'' if bias is None else ', with a bias'}"
            assert_close(piece, whole[:, :, first:stop], tolerance=1e-10, what=what)


@check(*_NOT_CROSS, ("not mixes_queries", "query_pieces"))
def queries_mix(subject: Subject) -> None:
    """A mechanism that is declared to mix queries does: others than its own change what a query gets."""
    mechanism = subject.build(False, dtype=torch.float64)
    x = subject.inputs(mechanism, queries=9, keys=LENGTH, dtype=torch.float64)
    single = run(mechanism, x.queries(3, 4), query_start=3).values
    off = largest_error(single, run(mechanism, x).values[:, :, 3:4])
    require(off > 1e-6, "info.mixes_queries, but a query alone gets what it gets among others")
