"""Law 7 and the definition: the algorithm equals its reference in every precision, and survives huge logits."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.errors import ConfigError
from regard.testing.compare import assert_close, assert_identical, largest_error, require
from regard.testing.conditioning import assert_float32
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    as_queries,
    call,
    definition,
    draw,
    exact_copy,
    has_margin,
    here,
    randn,
    run,
)
from regard.testing.registry import check
from regard.testing.streams import stream

FLOAT32_ERROR = 2e-6
"""of the largest output; more only where the definition itself loses it, see `conditioning`"""

BFLOAT16_ERROR = 2**-7
"""of the largest output: two roundings to 8 bits, one of them the output's own"""

CLOSE_CALL = 1e-6
"""a choice that inputs moved by so much of themselves would change is left to rounding"""

SAME = 1e-9
"""of the largest output: the same choices"""
MANY = 200
"""rows of a batch, so that some choices are nearly close calls"""
CLEAR_SHARE = 0.5
"""of the queries have no close call, or too little was tested"""

HUGE = (1e15, 1e25, 1e37)
"""of vectors, whose products, or squares, or both leave float32"""
HUGE_ERROR = 1e-3
"""of the largest number: another key than the definition's costs more"""

AUTOCAST_ERROR = 5e-2
"""of the largest output: products of rounded factors, each rounded again"""


def _cases(subject: Subject, dtype: torch.dtype) -> Iterator[tuple[str, Attention, Inputs]]:
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=dtype)
        yield f"{LENGTH} positions, {causal=}", mechanism, subject.inputs(mechanism, dtype=dtype)
        mechanism = subject.build(causal, dtype=dtype, max_length=LONG)
        x = subject.inputs(mechanism, queries=LONG, batch=1, dtype=dtype)
        yield f"{LONG} positions, {causal=}", mechanism, x
        if subject.cls.compares_widths:
            mechanism = subject.build(causal, dtype=dtype, query_dim=5)
            yield f"queries of width 5, {causal=}", mechanism, subject.inputs(mechanism, dtype=dtype)


def _by_definition(mechanism: Attention, x: Inputs, decisions: object = None) -> dict[str, Tensor]:
    return {"values": definition(mechanism, x, decisions=decisions)}


@check()
def reference(subject: Subject) -> None:
    """In float64 the algorithm is its definition to 1e-10."""
    for what, mechanism, x in _cases(subject, torch.float64):
        expected = definition(mechanism, x)
        assert_close(run(mechanism, x).values, expected, tolerance=1e-10, what=what)


@check(("not selects", "reference"))
def replayed_choices(subject: Subject) -> None:
    """With the choices of `decisions(q, k)` replayed in the definition, inputs need no margin."""
    for causal in subject.modes:
        for dtype in (torch.float32, torch.bfloat16):
            mechanism = subject.build(causal, dtype=dtype, max_length=LONG)
            require(hasattr(mechanism, "decisions"), "info.selects asks for decisions(q, k), which reference takes")
            for seed in range(2):
                x = draw(mechanism.heads, subject.info, LONG, LONG, 1, f"close calls {seed}").to(dtype)
                x = x.replaced(v=x.v + 2)
                if mechanism.impl == "reference":  # it chooses as the definition does, in float32 at least
                    _require_definition(mechanism, x)
                    continue
                with torch.no_grad():
                    made = mechanism.decisions(x.q, x.k)  # pyright: ignore[reportCallIssue]
                replayed = partial(_by_definition, decisions=made)
                what, got = f"{dtype}, {causal=}, choices replayed", {"values": run(mechanism, x).values}
                if dtype == torch.float32:
                    assert_float32(got, replayed, mechanism, x, floor=FLOAT32_ERROR, what=what)
                else:
                    expected = replayed(exact_copy(mechanism), x.to(torch.float64))["values"]
                    assert_close(got["values"].double(), expected, tolerance=BFLOAT16_ERROR, what=what)


@check(("not selects", "reference"))
def clear_choices(subject: Subject) -> None:
    """In float32 and bfloat16 the choices are those of exact numbers, wherever these do not hang on the last digits."""
    for causal in subject.modes:
        for dtype in (torch.float32, torch.bfloat16):
            mechanism = subject.build(causal, dtype=dtype, max_length=LENGTH)
            if mechanism.impl == "reference":  # `replayed_choices` compares it with the definition
                continue
            x = draw(mechanism.heads, subject.info, LENGTH, LENGTH, MANY, "clear choices").to(dtype)
            exact, oracle = x.to(torch.float64), exact_copy(mechanism)
            wanted = definition(oracle, exact)
            clear = torch.ones(wanted.shape[:3], dtype=torch.bool, device=here())
            for trial in range(2):
                ways = [definition(oracle, _moved(exact, mechanism, way, trial)) for way in (CLOSE_CALL, -CLOSE_CALL)]
                # what is smooth cancels but for the square of the step; a choice that one way changes does not
                clear &= _alike((ways[0] + ways[1]) / 2, wanted)
            share = clear.double().mean().item()
            require(share > CLEAR_SHARE, f"{dtype}, {causal=}: only {share:.0%} of the queries have no close call")
            made = _decided(mechanism, x)
            wrong = (clear & ~_alike(definition(oracle, exact, decisions=made), wanted)).nonzero().tolist()
            require(
                not wrong,
                f"{dtype}, {causal=}: {len(wrong)} of {int(clear.sum())} queries without a close call "
                f"choose otherwise, such as (batch, head, query) {wrong[:1]}",
            )


@torch.no_grad()
def _decided(mechanism: Attention, x: Inputs) -> object:
    require(hasattr(mechanism, "decisions"), "info.selects asks for decisions(q, k), which reference takes")
    return mechanism.decisions(x.q, x.k)  # pyright: ignore[reportCallIssue]


def _moved(x: Inputs, mechanism: Attention, step: float, trial: int) -> Inputs:
    """The inputs with every number of queries and keys moved by about `step` of it."""
    q, k = (y * (1 + step * randn(*y.shape, seed=f"{trial} {n}", dtype=y.dtype)) for n, y in (("q", x.q), ("k", x.k)))
    return x.replaced(q=as_queries(k, mechanism.heads, q.shape[2]) if mechanism.info.shares_query_key else q, k=k)


def _alike(values: Tensor, wanted: Tensor) -> Tensor:
    """Which queries have the same values, (batch, heads, queries)."""
    return (values - wanted).abs().amax(-1) <= SAME * wanted.abs().max()


@check(("not replays_choices", "replayed_choices"))
def close_calls(subject: Subject) -> None:
    """Choices that are declared too many to keep clear of are: some inputs have one that is about to flip."""
    for causal in subject.modes:
        mechanism = subject.build(causal, max_length=LONG)
        drawn = (draw(mechanism.heads, subject.info, LONG, LONG, 2, f"calls {seed}") for seed in range(5))
        clear = all(has_margin(mechanism, x) and not _flips(mechanism, x) for x in drawn)
        require(not clear, f"info.replays_choices, but every choice of five inputs has a margin, {causal=}")


def _flips(mechanism: Attention, x: Inputs) -> bool:
    """Whether rounding to float32 moves the definition further than rounding without a choice does."""
    exact = definition(exact_copy(mechanism), x.to(torch.float64))
    return largest_error(definition(mechanism, x).double(), exact) > FLOAT32_ERROR


def _require_definition(mechanism: Attention, x: Inputs) -> None:
    expected = definition(copy.deepcopy(mechanism).float(), x.to(torch.float32)).to(x.v.dtype)
    assert_identical(run(mechanism, x).values, expected, what=f"{x.v.dtype}, the definition")


@check(("replays_choices", "replayed_choices"))
def reference_float32(subject: Subject) -> None:
    """In float32 the error is at most 2e-6 of the largest output, or 4 times what the definition loses in any order."""
    for what, mechanism, x in _cases(subject, torch.float32):
        got = {"values": run(mechanism, x).values}
        assert_float32(got, _by_definition, mechanism, x, floor=FLOAT32_ERROR, what=what)


@check(("replays_choices", "replayed_choices"))
def bfloat16(subject: Subject) -> None:
    """In bfloat16 the result is the definition's on the same rounded inputs, accumulated in float32 at least."""
    for what, mechanism, x in _cases(subject, torch.bfloat16):
        x = x.replaced(v=x.v + 2)  # late averages as large as early ones, so that a sum that stalls shows
        expected = definition(exact_copy(mechanism), x.to(torch.float64))
        assert_close(run(mechanism, x).values.double(), expected, tolerance=BFLOAT16_ERROR, what=what)


@check()
def autocast(subject: Subject) -> None:
    """Under autocast to bfloat16 the dtype stays that of the inputs, and the values stay close; backward works."""
    for causal in subject.modes:
        for dtype in (torch.float32, torch.bfloat16):  # a layer's projections hand over bfloat16
            mechanism = subject.build(causal)
            x = subject.inputs(mechanism, dtype=dtype).leaves()
            expected = definition(exact_copy(mechanism), x.to(torch.float64))
            with torch.autocast(here().type, dtype=torch.bfloat16):
                out = call(mechanism, x).values
            require(out.dtype == dtype, f"{dtype} in, {out.dtype} out")
            what = f"{dtype} under autocast, {causal=}"
            assert_close(out.detach().double(), expected, tolerance=AUTOCAST_ERROR, what=what)
            out.float().square().sum().backward()
            for name, y in x.named().items():
                require(
                    y.grad is None or bool(y.grad.isfinite().all()), f"the gradient of {name} is not finite, {what}"
                )


@check()
def exact_definition(subject: Subject) -> None:
    """`impl="reference"` is summed in float32 at least: autocast changes no bit, and a state rounds no input."""
    explicit = Subject(subject.cls, {**subject.options, "impl": "reference"})
    try:
        explicit.fresh(subject.modes[0])
    except ConfigError:  # options of training alone
        explicit = Subject(subject.cls, {**subject.cls.samples[0], "impl": "reference"})
    for causal in subject.modes:
        mechanism = explicit.build(causal)
        x = explicit.inputs(mechanism)
        expected = definition(mechanism, x)
        assert_identical(run(mechanism, x).values, expected, what=f"the definition, {causal=}")
        with torch.autocast(here().type, dtype=torch.bfloat16):
            assert_identical(run(mechanism, x).values, expected, what=f"the definition under autocast, {causal=}")
    if not (subject.info.supports.state and subject.info.supports.causal and explicit.info.inputs):
        return
    mechanism = explicit.build(True, dtype=torch.bfloat16)
    x = explicit.inputs(mechanism)
    narrow = x.to(torch.bfloat16).replaced(**x.more)  # `activate` may give wider numbers than it gets
    for name, entry in mechanism.layout().items():
        if name in x.of_keys:
            kept = entry.dtype_of(torch.bfloat16)
            require(kept == torch.float32, f"{name} is kept as {kept}")
    out = stream(mechanism, narrow, (5, 1, 7))[0]
    whole = run(mechanism, narrow).values
    assert_close(out, whole, tolerance=BFLOAT16_ERROR, what="float32 inputs beside bfloat16 keys, pieces")


@check()
def huge_vectors(subject: Subject) -> None:
    """Where the definition survives vectors whose squares or products leave the type, no value is finite and wrong.

    A row of zeros says nothing: either it sees no key, or all its features underflow, of which nobody knows the shares.
    """
    info = subject.info
    for causal in subject.modes:
        mechanism = subject.build(causal)
        drawn = draw(mechanism.heads, info, LENGTH, LENGTH, 1, "huge vectors")
        for size in HUGE:
            x = drawn.replaced(q=size * drawn.q, k=size * drawn.k)
            got, narrow = run(mechanism, x).values, definition(mechanism, x)
            exact = definition(exact_copy(mechanism), x.to(torch.float64)).float()
            allowed = HUGE_ERROR * torch.cat([y[y.isfinite()].abs() for y in (x.v, exact)]).max()
            survives, right = ((y - exact).abs() <= allowed for y in (narrow, got))
            wrong = survives & got.isfinite() & ~right & (exact != 0).any(-1, keepdim=True)
            at = wrong.nonzero().tolist()
            require(
                not at, f"q and k times {size:g}, {causal=}: {len(at)} values are finite and wrong, first at {at[:1]}"
            )


@check()
def huge_logits(subject: Subject) -> None:
    """Logits of 1e4 give finite values and gradients, inside the range of the values where rows are averages."""
    info = subject.info
    for causal in subject.modes:
        for length in (LENGTH, LONG):
            mechanism = subject.build(causal, max_length=LONG)
            for scale in (100.0, 1e-4) if length == LENGTH else (100.0,):
                x = draw(mechanism.heads, info, length, length, 1, "huge", scale).leaves()
                out = call(mechanism, x).values
                what = f"q and k times {scale:g}, {length} positions, {causal=}"
                require(bool(out.isfinite().all()), f"{what}: values are not finite")
                if info.rows_sum_to_one and info.nonnegative and info.linear_in_value:
                    v = x.v.repeat_interleave(mechanism.heads.group, 1)
                    inside = (out <= v.amax(2, keepdim=True) + 1e-5) & (out >= v.amin(2, keepdim=True) - 1e-5)
                    require(bool(inside.all()), f"{what}: averages leave the range of the values")
                grads = torch.autograd.grad(out.square().sum(), list(x.named().values()), allow_unused=True)
                finite = all(g.isfinite().all() for g in grads if g is not None)
                require(finite, f"{what}: gradients are not finite")
