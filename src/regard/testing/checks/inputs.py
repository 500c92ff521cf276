"""Declared inputs: the gates, decays and write strengths that a mechanism needs besides q, k and v.

Every other check gives them too, and changes, hides, cuts and differentiates them as it does keys and values.
"""

import math

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.errors import InputError, ShapeError
from regard.testing.compare import assert_close, assert_identical, refused, require
from regard.testing.inputs import (
    LENGTH,
    Inputs,
    Subject,
    activated,
    here,
    mask_with_holes,
    projected,
    randn,
    raw_inputs,
    run,
)
from regard.testing.registry import check

_NO_INPUTS = ("not inputs", "refusals")


@check(_NO_INPUTS)
def input_bounds(subject: Subject) -> None:
    """A number beyond the bounds of an input raises InputError, and `activate` makes none from any projections."""
    for _, mechanism, x in subject.cases(torch.float32):
        for name, each in subject.info.inputs.items():
            for end, beyond in ((each.low, each.low - 1e-3), (each.high, each.high + 1e-3)):
                if math.isfinite(end):
                    run(mechanism, _with_last(x, name, end))
                    refused(f"{name} of {beyond:g}", InputError, run, mechanism, _with_last(x, name, beyond))
        for scale in (1.0, 100.0):
            raw = raw_inputs(mechanism, x, scale)
            with torch.no_grad():
                effective = mechanism.activate(raw)
            require(effective.keys() == x.more.keys(), f"activate made {sorted(effective)} of {sorted(raw)}")
            for name, y in effective.items():
                each = subject.info.inputs[name]
                require(y.shape == x.more[name].shape, f"activate made {name} of shape {tuple(y.shape)}")
                inside = bool(((y >= each.low) & (y <= each.high)).all())
                span = f"[{y.min().item():g}, {y.max().item():g}]"
                require(inside, f"activate made {name} in {span}, the bounds are [{each.low:g}, {each.high:g}]")
            out = run(mechanism, x.replaced(**effective)).values
            require(bool(out.isfinite().all()), f"values are not finite on projections times {scale:g}")


def _with_last(x: Inputs, name: str, number: float) -> Inputs:
    """With another last number in one input."""
    other = x.more[name].clone()
    other[-1, -1, -1, -1] = number
    return x.replaced(**{name: other})


@check(_NO_INPUTS)
def input_shapes(subject: Subject) -> None:
    """Inputs with other heads, slots, widths or dtypes, unknown and missing ones raise ShapeError."""
    for _, mechanism, x in subject.cases(torch.float32):
        for name, y in x.more.items():
            wrong: dict[str, Tensor] = {
                "one head more": torch.cat([y, y[:, :1]], 1),
                **({"one head for all": y[:, :1]} if y.shape[1] > 1 else {}),
                "one row for all": y[:1],
                "one slot less": y[:, :, 1:],
                "one number more per slot": torch.cat([y, y[..., :1]], -1),
                "integers": y.long(),
            }
            for what, other in wrong.items():
                refused(f"{name}, {what},", ShapeError, run, mechanism, x.replaced(**{name: other}))
            without = Inputs(x.q, x.k, x.v, {each: z for each, z in x.more.items() if each != name})
            refused(f"a call without {name}", ShapeError, run, mechanism, without)
        beside = Inputs(x.q, x.k, x.v, {**x.more, "no_such_input": x.k})
        refused("an unknown input", ShapeError, run, mechanism, beside)


@check(_NO_INPUTS)
def activation(subject: Subject) -> None:
    """`activate` makes the inputs of every slot and row from the raw ones of that slot and row, and changes nothing."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        x = projected(mechanism, subject.inputs(mechanism, batch=3, dtype=torch.float64))
        before, given = {name: (y.clone(), y._version) for name, y in x.more.items()}, dict(x.more)
        whole = _activated(mechanism, Inputs(x.q, x.k, x.v, given, x.asking))
        require(given.keys() == x.more.keys(), f"activate was given {sorted(x.more)} and left {sorted(given)}")
        for name, y in x.more.items():
            value, version = before[name]
            same = given[name] is y and torch.equal(y, value) and y._version == version
            require(same, f"activate changed the raw {name}")
        _same(_activated(mechanism, x), whole, "made again")
        for at in range(LENGTH):
            _same(_activated(mechanism, _other(x, slice(None), at)), whole, f"beside other raw inputs in slot {at}", at)
        for row in range(3):
            other = _other(x, slice(row, row + 1), slice(None))
            rest = torch.arange(3, device=here()) != row
            _same(_rows(_activated(mechanism, other), rest), _rows(whole, rest), f"beside another row {row}")
        for first, stop in ((0, 1), (0, 5), (5, 6), (5, LENGTH), (LENGTH - 1, LENGTH)):
            _close(_activated(mechanism, x.slots(first, stop)), whole, subject, slice(first, stop), slice(first, stop))
        supports = subject.info.supports
        for first, served in ((9, supports.prefix or supports.cross), (LENGTH, supports.state)):
            if served:
                queries, keys = slice(first, None), slice(None)
                _close(_activated(mechanism, x.queries(first)), whole, subject, queries, keys)
        if supports.key_mask:
            _hidden(mechanism, x)


def _close(part: dict[str, Tensor], whole: dict[str, Tensor], subject: Subject, queries: slice, keys: slice) -> None:
    """The inputs of some queries and keys alone are those of the whole, which may round otherwise."""
    for name, y in whole.items():
        wanted = y[:, :, queries if subject.info.inputs[name].slots == "queries" else keys]
        what = f"{name}, made of the queries {queries} and the keys {keys} alone,"
        require(part[name].shape == wanted.shape, f"{what} has shape {tuple(part[name].shape)}")
        if wanted.numel():
            assert_close(part[name], wanted, tolerance=1e-12, what=what)


def _activated(mechanism: Attention, x: Inputs) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: y.clone() for name, y in mechanism.activate(x.more).items()}


def _other(x: Inputs, rows: slice, slots: int | slice) -> Inputs:
    """With other raw inputs in some slots of some rows."""
    more = {name: y.clone() for name, y in x.more.items()}
    for name, y in more.items():
        y[rows, :, slots] = 3 * randn(*y[rows, :, slots].shape, seed=f"other {name}", dtype=y.dtype)
    return x.replaced(**more)


def _rows(effective: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: y[rows] for name, y in effective.items()}


def _same(found: dict[str, Tensor], whole: dict[str, Tensor], what: str, but: int | None = None) -> None:
    """To the bit, in every slot but one."""
    for name, y in whole.items():
        kept = [at for at in range(y.shape[2]) if at != but]
        assert_identical(found[name][:, :, kept], y[:, :, kept], what=f"{name}, {what}")


def _hidden(mechanism: Attention, x: Inputs) -> None:
    """Raw inputs of hidden keys have no influence, even where they are NaN."""
    keep = mask_with_holes(3, LENGTH)
    hidden = ~keep[:, None, :, None]
    spoilt = {name: y.masked_fill(hidden, math.nan) for name, y in x.more.items() if name not in x.asking}
    with torch.no_grad():
        values = [run(mechanism, activated(mechanism, y), key_mask=keep).values for y in (x, x.replaced(**spoilt))]
    real = keep[:, None].expand(-1, values[0].shape[1], -1)
    assert_identical(values[1][real], values[0][real], what="values, with raw inputs of NaN in hidden slots")
