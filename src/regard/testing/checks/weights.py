"""Law 10 and the facts about the effective attention matrix: normalised, nonnegative, linear in the values."""

from itertools import chain

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.functional import weights
from regard.testing.compare import assert_close, largest_error, require
from regard.testing.inputs import LENGTH, Inputs, Subject, as_queries, draw, here, mask_with_holes, randn, run
from regard.testing.registry import check
from regard.testing.sizes import growing
from regard.testing.streams import stream

EXACT = 1e-12
"""an approximation that errs less has not begun to approximate"""


@check(("not rows_sum_to_one", "rows_free"))
def rows_sum_to_one(subject: Subject) -> None:
    """Constant values come back: the weights of every query with a key sum to one, however confident it is."""
    for causal, mechanism, x in subject.cases():
        one = x.replaced(v=torch.ones_like(x.v))
        for each in (one, _confident(one)):
            out = run(mechanism, each).values
            assert_close(out, torch.ones_like(out), tolerance=1e-10, what=f"values of 1, {causal=}")
        if subject.info.supports.key_mask:
            out = run(mechanism, one, key_mask=mask_with_holes(2, LENGTH)).values
            rows = mask_with_holes(2, LENGTH)[:, None, :].expand(-1, 2, -1)
            assert_close(out[rows], torch.ones_like(out[rows]), tolerance=1e-10, what=f"values of 1, masked, {causal=}")


def _confident(x: Inputs) -> Inputs:
    """Queries and keys whose largest logit is far above the next."""
    return x.replaced(q=100 * x.q, k=100 * x.k)


@check(("rows_sum_to_one", "rows_sum_to_one"))
def rows_free(subject: Subject) -> None:
    """A mechanism that is declared unnormalised really is, if only for some queries."""
    for _, mechanism, x in subject.cases():
        tried = [x, _confident(x)]
        if not subject.info.shares_query_key:
            tried.append(x.replaced(q=-x.q.abs(), k=x.k.abs()))
        out = torch.stack([run(mechanism, y.replaced(v=torch.ones_like(y.v))).values for y in tried])
        require((out - 1).abs().max().item() > 1e-4, "info.rows_sum_to_one is False, but the rows do")


@check(("not nonnegative", "signed"), ("not affine_in_value", "nonlinear"))
def nonnegative(subject: Subject) -> None:
    """No weight of the effective attention matrix is negative."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        for seed in range(3):
            x = subject.inputs(mechanism, seed=seed, dtype=torch.float64)
            lowest = weights(mechanism, x.q, x.k, inputs=x.more).min().item()
            require(lowest > -1e-12, f"weight {lowest:.2e}, {causal=}")


@check(("nonnegative", "nonnegative"), ("not affine_in_value", "nonlinear"))
def signed(subject: Subject) -> None:
    """A mechanism that is declared to have negative weights has some."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        drawn = ((mechanism, subject.inputs(mechanism, seed=seed, dtype=torch.float64)) for seed in range(5))
        found = any(_negative(*each) for each in chain(drawn, subject.growing(causal)))
        require(found, "info.nonnegative is False, but no weight is negative")


def _negative(mechanism: Attention, x: Inputs) -> bool:
    return weights(mechanism, x.q, x.k, inputs=x.more).min().item() < -1e-6


@check(("not linear_in_value", "affine_in_value"))
def linear_in_value(subject: Subject) -> None:
    """f(v + 2 w) = f(v) + 2 f(w), and f(0) = 0."""
    for causal, mechanism, x in subject.cases():
        both, parts, free = _added(mechanism, x)
        require(not free.any(), f"info.linear_in_value, but values of 0 do not give 0, {causal=}")
        assert_close(both, parts, tolerance=1e-10, what=f"f(v + 2 w), {causal=}")


@check(("linear_in_value", "linear_in_value"), ("not affine_in_value", "nonlinear"))
def affine_in_value(subject: Subject) -> None:
    """f(v + 2 w) = f(v) + 2 f(w) - 2 f(0), and f(0) is not 0."""
    for causal, mechanism, x in subject.cases():
        both, parts, free = _added(mechanism, x)
        assert_close(both, parts, tolerance=1e-10, what=f"f(v + 2 w), {causal=}")
        require(bool(free.any()), "info.linear_in_value is False, but values of 0 give 0")


def _added(mechanism: Attention, x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """f(v + 2 w), f(v) + 2 f(w) - 2 f(0) and f(0)."""
    w = randn(*x.v.shape, seed="w", dtype=torch.float64)
    whole, other, both, free = (
        run(mechanism, x.replaced(v=v)).values for v in (x.v, w, x.v + 2 * w, torch.zeros_like(w))
    )
    return both, whole + 2 * (other - free), free


@check(("affine_in_value", "linear_in_value"))
def nonlinear(subject: Subject) -> None:
    """A mechanism that is declared not affine in the values is not."""
    for _, mechanism, x in subject.cases():
        both, parts, _ = _added(mechanism, x)
        off = largest_error(both, parts)
        require(off > 1e-3, "info.affine_in_value is False, but the output is affine in the values")


@check(("not supports.bidirectional", "causality"), ("not sees_content_only", "order"))
def permutation(subject: Subject) -> None:
    """Permuting the keys changes nothing; permuting the queries permutes the output."""
    mechanism, x = subject.case(False)
    whole = run(mechanism, x).values
    shuffled = torch.arange(LENGTH - 1, -1, -1, device=here()).roll(3)
    moved = {name: y[:, :, shuffled] for name, y in x.named().items()}
    if subject.info.shares_query_key:
        out = run(mechanism, x.replaced(**moved)).values
    else:
        keys = {name: y for name, y in moved.items() if name not in x.asking}
        assert_close(run(mechanism, x.replaced(**keys)).values, whole, tolerance=1e-10, what="keys in another order")
        queries = {name: y for name, y in moved.items() if name in x.asking}
        out = run(mechanism, x.replaced(**queries)).values
    assert_close(out, whole[:, :, shuffled], tolerance=1e-10, what="queries in another order")


@check(("not supports.bidirectional", "causality"), ("sees_content_only", "permutation"))
def order(subject: Subject) -> None:
    """A mechanism that is declared to depend on positions does."""
    for mechanism, x in subject.growing(False):
        shuffled = torch.arange(x.q.shape[2] - 1, -1, -1, device=here()).roll(3)
        out = run(mechanism, x.map(lambda y, at=shuffled: y[:, :, at])).values
        if largest_error(out, run(mechanism, x).values[:, :, shuffled]) > 1e-4:
            return
    require(False, "info.sees_content_only is False, but the order of the positions changes nothing")


@check()
def grouped_heads(subject: Subject) -> None:
    """Query heads that share keys and values give what repeated keys and values give."""
    for causal in subject.modes:
        grouped = subject.build(causal, dtype=torch.float64, count=4, kv_count=2)
        ungrouped = subject.build(causal, dtype=torch.float64, count=4)
        _copy_repeated(grouped, ungrouped)
        x = draw(grouped.heads, subject.info, LENGTH, LENGTH, 2, "grouped").to(torch.float64)
        of_keys = {name for name, each in subject.info.inputs.items() if each.heads == "key"} | {"k", "v"}
        wide = {name: y.repeat_interleave(2, 1) for name, y in x.named().items() if name in of_keys}
        if subject.info.shares_query_key:
            wide["q"] = as_queries(x.k, grouped.heads, LENGTH)
        repeated = x.replaced(**wide)
        expected = run(ungrouped, repeated).values
        assert_close(run(grouped, x).values, expected, tolerance=1e-10, what=f"2 heads for 4, {causal=}")
        if subject.info.supports.key_mask:
            keep = mask_with_holes(2, LENGTH)
            masked = run(grouped, x, key_mask=keep).values
            expected = run(ungrouped, repeated, key_mask=keep).values
            assert_close(masked, expected, tolerance=1e-10, what=f"2 heads for 4, masked, {causal=}")
        if causal and subject.info.supports.state:
            require(subject.info.grouped == "native", "a mechanism with a state must serve grouped heads natively")
            full = ungrouped.state_nbytes(2, LENGTH, torch.float64)
            half = grouped.state_nbytes(2, LENGTH, torch.float64)
            require(
                half < 0.75 * full, f"state of 2 key heads takes {half} bytes, of 4 {full}: it holds expanded heads"
            )
            streamed = stream(grouped, x, (5, LENGTH - 5))[0]
            assert_close(streamed, run(grouped, x).values, tolerance=1e-10, what="2 heads for 4, through a state")


def _copy_repeated(source: Attention, target: Attention) -> None:
    """Load the weights; one that belongs to a head of keys goes to every head of its group."""
    tensors, wanted = source.state_dict(), target.state_dict()
    for name, x in tensors.items():
        for axis, (size, needed) in enumerate(zip(x.shape, wanted[name].shape, strict=True)):
            if needed != size:
                x = x.repeat_interleave(needed // size, axis)
        tensors[name] = x
    target.load_state_dict(tensors)


@check(("not approximates", "reference"))
def approximation(subject: Subject) -> None:
    """The error against the approximated mechanism falls as the knob grows, on average over seeds."""
    from regard.catalog import build

    info = subject.info
    assert info.approximates is not None
    assert info.knob is not None
    for causal in subject.modes:
        start, errors = getattr(subject.fresh(causal), info.knob), []
        for length in growing(LENGTH, subject.size):
            exact = build(info.approximates, subject.heads(causal, max_length=max(length, 32)))
            exact = exact.to(here()).double().eval()
            errors = []
            for factor in (1, 4, 16):
                each = Subject(subject.cls, {**subject.options, info.knob: start * factor})
                total = 0.0
                for seed in range(6):
                    mechanism = each.fresh(causal, seed=seed, max_length=max(length, 32)).double()
                    x = subject.inputs(mechanism, queries=length, seed=seed, dtype=torch.float64, scale=0.7)
                    off = run(mechanism, x).values - run(exact, x).values
                    total += off.square().mean().item()
                errors.append((total / 6) ** 0.5)
                if errors[0] < EXACT:  # a size that no sequence of this length reaches
                    break
            if errors[0] >= EXACT:
                break
        require(errors[0] >= EXACT, f"{info.knob} = {start} is exact at every length up to twice the largest option")
        require(
            errors[2] < 0.7 * errors[0],
            f"{info.knob} = {start}, {4 * start}, {16 * start} gives errors {', '.join(f'{e:.3g}' for e in errors)}",
        )
