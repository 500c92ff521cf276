"""Law 4: a bias is data indexed by distance, and every form of it means the same table."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError
from regard.testing.compare import assert_close, require
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    call,
    define,
    definition,
    here,
    mask_with_holes,
    randn,
    run,
)
from regard.testing.registry import check
from regard.testing.sizes import growing

_REFUSED = ("not supports.bias", "refusals")
_WIDTH = 5


def far_curve(length: int, heads: int = 2, seed: str = "curve") -> ScoreBias:
    """A random logit per head for every distance in -(length - 1) .. length - 1."""
    return ScoreBias(high=length - 1, curve=randn(heads, 2 * length - 1, seed=seed, dtype=torch.float64))


def far_relative(length: int, batch: int = 2, heads: int = 2, seed: str = "relative") -> ScoreBias:
    """A random logit per query, as a product, for every distance in -(length - 1) .. length - 1."""
    return ScoreBias(
        high=length - 1,
        query=randn(batch, heads, length, _WIDTH, seed=f"{seed} query", dtype=torch.float64),
        relative=randn(heads, 2 * length - 1, _WIDTH, seed=f"{seed} rows", dtype=torch.float64),
    )


def within(bias: ScoreBias, low: int, high: int, queries: slice = slice(None)) -> ScoreBias:
    """Only the columns of the distances low .. high, and the rows of some queries."""
    columns = slice(bias.high - high, bias.high - low + 1)
    return ScoreBias(
        high=high,
        curve=None if bias.curve is None else bias.curve[:, columns],
        query=None if bias.query is None else bias.query[:, :, queries],
        relative=None if bias.relative is None else bias.relative[:, columns],
    )


def as_table(bias: ScoreBias, queries: int, keys: int, causal: bool, batch: int = 2) -> Tensor:
    """The same logits as a table, one pair at a time."""
    shift = keys - queries if causal else 0
    rows = []
    for i in range(queries):
        column = [bias.high - (i + shift - j) for j in range(keys)]
        row = torch.zeros(batch, 2, keys, dtype=torch.float64, device=here())
        if bias.curve is not None:
            row = row + bias.curve[:, column]
        if bias.query is not None and bias.relative is not None:
            row = row + torch.einsum("bhd,hkd->bhk", bias.query[:, :, i], bias.relative[:, column])
        rows.append(row)
    return torch.stack(rows, 2)


def _used(subject: Subject, mechanism: Attention, length: int, bias: ScoreBias) -> ScoreBias:
    """The bias cut to the distances that the mechanism asks for."""
    low, high = mechanism.bias_distances(length, length)
    require(low <= 0 <= high, f"bias_distances are {(low, high)} of {length} positions; distance 0 is missing")
    require(1 - length <= low and high <= length - 1, f"bias_distances are {(low, high)}, beyond {length} positions")
    return within(bias, low, high)


@check(_REFUSED)
def bias_curve(subject: Subject) -> None:
    """A logit per distance acts as its table does, and as in the definition, with and without a mask."""
    _agrees(subject, far_curve)


@check(_REFUSED)
def bias_relative(subject: Subject) -> None:
    """A logit per query and distance acts as its table does, and as in the definition."""
    _agrees(subject, far_relative)


def _agrees(subject: Subject, make: Callable[[int], ScoreBias]) -> None:
    for causal in subject.modes:
        moved = 0.0
        for length in (LENGTH, LONG):
            mechanism, x = subject.drawn(causal, length, "biased")
            far = make(length)
            bias = _used(subject, mechanism, length, far)
            table = ScoreBias(table=as_table(far, length, length, causal))
            for keep in (None, mask_with_holes(2, length)) if subject.info.supports.key_mask else (None,):
                expected = definition(mechanism, x, key_mask=keep, bias=table)
                what = f"{length} positions, {causal=}, {'masked' if keep is not None else 'no mask'}"
                for how, one in (("by distance", bias), ("as a table", table)):
                    out = run(mechanism, x, key_mask=keep, bias=one).values
                    assert_close(out, expected, tolerance=1e-10, what=f"{how}, {what}")
            moved = _moved(mechanism, x, bias)
        # A stride may be longer than these sequences.
        longer = growing(LONG, subject.size)[1:]
        while moved <= 1e-2 and longer:
            length = longer.pop(0)
            mechanism, x = subject.drawn(causal, length, "biased")
            moved = _moved(mechanism, x, _used(subject, mechanism, length, make(length)))
        require(moved > 1e-2, "the bias changed nothing")


def _moved(mechanism: Attention, x: Inputs, bias: ScoreBias) -> float:
    """How far a bias moves the values."""
    return (run(mechanism, x, bias=bias).values - run(mechanism, x).values).abs().max().item()


@check(_REFUSED)
def bias_table(subject: Subject) -> None:
    """A table may be boolean or hold -inf, and be shared by the batch or the heads; parts add up."""
    for causal, mechanism, x in subject.cases():
        for shape in ((2, 2), (1, 2), (2, 1), (1, 1)):
            keep = randn(*shape, LENGTH, LENGTH, seed=f"keep {shape}") > -0.5
            keep[:, :, 0] = False
            keep |= torch.eye(LENGTH, dtype=torch.bool, device=here()) & (torch.arange(LENGTH, device=here()) > 0)
            infinite = torch.zeros(keep.shape, dtype=torch.float64, device=here()).masked_fill(~keep, float("-inf"))
            chosen = run(mechanism, x, bias=ScoreBias(table=keep)).values
            expected = definition(mechanism, x, bias=ScoreBias(table=keep))
            assert_close(chosen, expected, tolerance=1e-10, what=f"boolean table {shape}, {causal=}")
            require(not chosen[:, :, 0].any(), "a query whose keys the table removes must return exactly 0")
            minus = run(mechanism, x, bias=ScoreBias(table=infinite)).values
            assert_close(minus, chosen, tolerance=1e-12, what=f"-inf table {shape}, {causal=}")
        curve, product = far_curve(LENGTH), far_relative(LENGTH)
        table = randn(1, 2, LENGTH, LENGTH, seed="table", dtype=torch.float64)
        total = table + as_table(replace(product, curve=curve.curve), LENGTH, LENGTH, causal)
        summed = _used(subject, mechanism, LENGTH, replace(product, curve=curve.curve))
        out = run(mechanism, x, bias=replace(summed, table=table)).values
        expected = run(mechanism, x, bias=ScoreBias(table=total)).values
        assert_close(out, expected, tolerance=1e-10, what=f"curve + query . relative + table, {causal=}")


@check(_REFUSED)
def bias_reach(subject: Subject) -> None:
    """`bias_distances` are true: distances outside them have no influence, and their ends have; no column adds 0."""
    for causal, mechanism, x in subject.cases():
        low, high = mechanism.bias_distances(LENGTH, LENGTH)
        for far in (far_curve(LENGTH), far_relative(LENGTH)):
            cut = _used(subject, mechanism, LENGTH, far)
            expected = run(mechanism, x, bias=cut).values
            assert_close(definition(mechanism, x, bias=cut), expected, tolerance=1e-10, what="definition, cut")
            wide = run(mechanism, x, bias=far).values
            assert_close(wide, expected, tolerance=1e-12, what=f"columns beyond the distances {(low, high)}, {causal=}")
            few = within(far, 1, 2)
            with suppress(ShapeError):  # who needs every distance may say so
                without = run(mechanism, x, bias=few).values
                expected = definition(mechanism, x, bias=few)
                assert_close(
                    without, expected, tolerance=1e-10, what=f"no column but those of distances 1 and 2, {causal=}"
                )
        moved = []
        still = run(mechanism, x, bias=far_curve(LENGTH)).values
        for distance in range(1 - LENGTH, LENGTH):
            far = far_curve(LENGTH)
            assert far.curve is not None
            far.curve[:, far.high - distance] += 2.0
            if (run(mechanism, x, bias=far).values - still).abs().max() > 1e-9:
                moved.append(distance)
        # Where every query sees one key, no logit of it acts.
        ends = (moved[0], moved[-1]) if moved or low != high else (low, high)
        require(ends == (low, high), f"bias_distances are {(low, high)}, but {moved} act, {causal=}")
        for queries, keys in () if causal or not subject.info.supports.cross else ((LENGTH, 5), (5, LENGTH)):
            x = subject.inputs(mechanism, queries=queries, keys=keys, dtype=torch.float64)
            low, high = mechanism.bias_distances(queries, keys)
            far = within(far_relative(LENGTH), 1 - LENGTH, LENGTH - 1, slice(0, queries))
            whole = replace(far, curve=far_curve(LENGTH).curve)
            wide = run(mechanism, x, bias=whole).values
            cut = run(mechanism, x, bias=within(whole, max(low, 1 - LENGTH), min(high, LENGTH - 1))).values
            what = f"columns beyond the distances {(low, high)} of {queries} queries on {keys} keys"
            assert_close(cut, wide, tolerance=1e-12, what=what)


@check(_REFUSED)
def bias_heads(subject: Subject) -> None:
    """Parts with one head serve all heads, and single precision works beside single precision inputs."""
    for causal, mechanism, x in subject.cases():
        one, product = far_curve(LENGTH, heads=1), far_relative(LENGTH, heads=1)
        assert one.curve is not None
        assert product.query is not None
        assert product.relative is not None
        wide = ScoreBias(
            high=one.high,
            curve=one.curve.expand(2, -1),
            query=product.query.expand(-1, 2, -1, -1),
            relative=product.relative.expand(2, -1, -1),
        )
        narrow = replace(product, curve=one.curve)
        out = run(mechanism, x, bias=_used(subject, mechanism, LENGTH, narrow)).values
        expected = run(mechanism, x, bias=_used(subject, mechanism, LENGTH, wide)).values
        assert_close(out, expected, tolerance=1e-10, what=f"one head for all, {causal=}")
        single = run(mechanism.float(), x.to(torch.float32), bias=_single(wide)).values
        assert_close(single.double(), expected, tolerance=5e-6, what=f"float32, {causal=}")


def _single(bias: ScoreBias) -> ScoreBias:
    parts = {name: getattr(bias, name) for name in ("curve", "query", "relative", "table")}
    return replace(bias, **{name: x.float() for name, x in parts.items() if x is not None})


@check(_REFUSED)
def bias_gradients(subject: Subject) -> None:
    """Every part of a bias gets the gradient of the definition."""
    for causal in subject.modes:
        for length in (LENGTH, LONG):
            mechanism, x = subject.drawn(causal, length, "biased", batch=1)
            whole = replace(far_relative(length, batch=1), curve=far_curve(length).curve)
            low, high = mechanism.bias_distances(length, length)
            cut = within(whole, low, high)
            table = randn(1, 2, length, length, seed="table", dtype=torch.float64)
            parts = {"curve": cut.curve, "query": cut.query, "relative": cut.relative}
            if length == LENGTH:
                parts["table"] = table
            leaves = {name: part.clone().requires_grad_() for name, part in parts.items() if part is not None}
            bias = ScoreBias(high=high, **leaves)
            way = randn(1, 2, length, 6, seed="way", dtype=torch.float64)
            got = _gradients(call(mechanism, x, bias=bias).values * way, leaves)
            wanted = _gradients(define(mechanism, x, bias=bias) * way, leaves)
            for name in leaves:
                what = f"gradient of {name}, {length} positions, {causal=}"
                assert_close(got[name], wanted[name], tolerance=1e-9, what=what)


def _gradients(values: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    grads = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))
