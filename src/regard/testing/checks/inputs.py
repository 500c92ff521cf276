"""Declared inputs: the gates, decays and write strengths that a mechanism needs besides q, k and v.

Every other check gives them too, and changes, hides, cuts and differentiates them as it does keys and values.
"""

import math

import torch
from torch import Tensor

from regard.core import Attention
from regard.errors import InputError, ShapeError
from regard.testing.compare import assert_identical
from regard.testing.inputs import LENGTH, Inputs, Subject, changed, randn, run
from regard.testing.registry import Failure, check, require

_NO_INPUTS = ("not inputs", "refusals")


@check(_NO_INPUTS)
def input_bounds(subject: Subject) -> None:
    """A number beyond the bounds of an input raises InputError, and `activate` makes none from any projections."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        x = subject.inputs(mechanism)
        for name, each in subject.info.inputs.items():
            for end, beyond in ((each.low, each.low - 1e-3), (each.high, each.high + 1e-3)):
                if math.isfinite(end):
                    run(mechanism, _with_last(x, name, end))
                    _refuses(mechanism, _with_last(x, name, beyond), InputError, f"{name} of {beyond:g}")
        for scale in (1.0, 100.0):
            raw = {name: scale * randn(*y.shape, seed=f"raw {name}") for name, y in x.more.items()}
            with torch.no_grad():
                effective = mechanism.activate(raw)
            require(effective.keys() == raw.keys(), f"activate made {sorted(effective)} of {sorted(raw)}")
            for name, y in effective.items():
                each = subject.info.inputs[name]
                require(y.shape == raw[name].shape, f"activate made {name} of shape {tuple(y.shape)}")
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


def _refuses(mechanism: Attention, x: Inputs, expected: type[Exception], what: str) -> None:
    try:
        mechanism(x.q, x.k, x.v, inputs=x.more)
    except expected:
        return
    except Exception as error:
        raise Failure(f"{what}: expected {expected.__name__}, got {type(error).__name__}: {error}") from error
    raise Failure(f"{what} was accepted")


@check(_NO_INPUTS)
def input_shapes(subject: Subject) -> None:
    """Inputs with other heads, slots, widths or dtypes, unknown and missing ones raise ShapeError."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        x = subject.inputs(mechanism)
        for name, y in x.more.items():
            wrong: dict[str, Tensor] = {
                "one head for all": y[:, :1],
                "one row for all": y[:1],
                "one slot less": y[:, :, 1:],
                "one number more per slot": torch.cat([y, y[..., :1]], -1),
                "integers": y.long(),
            }
            for what, other in wrong.items():
                _refuses(mechanism, x.replaced(**{name: other}), ShapeError, f"{name}, {what},")
            without = Inputs(x.q, x.k, x.v, {each: z for each, z in x.more.items() if each != name})
            _refuses(mechanism, without, ShapeError, f"a call without {name}")
        beside = Inputs(x.q, x.k, x.v, {**x.more, "no_such_input": x.k})
        _refuses(mechanism, beside, ShapeError, "an unknown input")


@check(_NO_INPUTS)
def input_slots(subject: Subject) -> None:
    """The content of an input for a query reaches that query alone; for a key, no earlier query and some later one."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        x = subject.inputs(mechanism)
        whole = run(mechanism, x).values
        for at in range(1, LENGTH - 1):
            other = changed(x, slice(at, at + 1), mechanism.heads, subject.info, f"input {at}")
            for name in x.more:
                out = run(mechanism, x.replaced(**{name: other.more[name]})).values
                moved, what = (out != whole).any(1).any(-1).any(0), f"{name} of slot {at}, {causal=}"
                if name in x.asking:
                    reached = moved.nonzero().flatten().tolist()
                    require(reached == [at], f"{what} reaches the queries {reached}")
                    continue
                if causal:
                    assert_identical(out[:, :, :at], whole[:, :, :at], what=f"outputs before another {what}")
                require(bool(moved.any()), f"{what} reaches no query")
