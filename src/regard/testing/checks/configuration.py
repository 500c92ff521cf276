"""Options: the class body is the configuration, and what does not fit it is refused."""

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import annotated_types

from regard.core.errors import ConfigError
from regard.testing.compare import Failure, assert_identical, require
from regard.testing.inputs import Subject, here, run
from regard.testing.registry import check

_NO_CHOICE = "no such choice"


@check()
def options(subject: Subject) -> None:
    """The signature is the configuration: it rebuilds the mechanism, and refuses whatever does not fit it."""
    cls = subject.cls
    heads, *keywords = inspect.signature(cls).parameters.values()
    require(heads.name == "heads" and heads.kind is heads.POSITIONAL_OR_KEYWORD, "the one positional argument is heads")
    for parameter in keywords:
        require(parameter.kind is parameter.KEYWORD_ONLY, f"option {parameter.name} must be keyword-only")
    defaults = {parameter.name: parameter.default for parameter in keywords}
    require(defaults.keys() == cls.defaults.keys(), f"signature {sorted(defaults)}, options {sorted(cls.defaults)}")
    for causal in subject.modes:
        mechanism = subject.build(causal)
        require(mechanism.options.keys() == defaults.keys(), f"options {sorted(mechanism.options)} were kept")
        for name, default in defaults.items():
            wanted = subject.options.get(name, default)
            require(
                _same(mechanism.options[name], wanted), f"option {name}={wanted!r} became {mechanism.options[name]!r}"
            )
            kept = getattr(mechanism, name)  # None stands for a value that depends on the others or on the heads
            require(wanted is None or _same(kept, wanted), f"option {name}={wanted!r} is the attribute {kept!r}")
        again = cls(mechanism.heads, **mechanism.options).eval().to(here())
        again.load_state_dict(mechanism.state_dict())
        x = subject.inputs(mechanism)
        assert_identical(run(again, x).values, run(mechanism, x).values, what="rebuilt from its options")
    _refuses(subject, "no_such_option", 1)
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in defaults:
        for value in misfits(hints[name]):
            _refuses(subject, name, value)


def _same(kept: object, wanted: object) -> bool:
    return kept is wanted or (type(kept) is type(wanted) and bool(kept == wanted))


def _refuses(subject: Subject, name: str, value: object) -> None:
    """Whether an option is refused by our error, when built and when described."""
    settings: dict[str, Any] = {**subject.options, name: value}
    for what, attempt in (
        ("built", lambda: subject.cls(subject.heads(subject.modes[0]), **settings)),
        ("described", lambda: subject.cls.describe(settings)),
    ):
        try:
            attempt()
        except ConfigError as error:
            require(name in str(error), f"the error for {name}={value!r} does not name it: {error}")
            continue
        raise Failure(f"{what} with {name}={value!r}, which is no option or does not fit its type, choices or bounds")


def misfits(hint: Any) -> Iterator[object]:
    """Values that a type does not admit: of another type, no choice of its `Literal`, just out of its bounds.

    Example:
        >>> list(misfits(Annotated[int, annotated_types.Ge(1)] | Literal["all"]))[1:]
        [0, 'no such choice']
    """
    if hint is not Any:
        yield object()
    for part in _parts(hint):
        if typing.get_origin(part) is Literal:
            if str not in _parts(hint):
                yield _NO_CHOICE
        elif typing.get_origin(part) is Annotated:
            yield from _beyond(part)
        elif typing.get_origin(part) is tuple and typing.get_args(part)[-1] is ...:
            yield from ((value,) for value in misfits(typing.get_args(part)[0]))


def _parts(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _beyond(hint: Any) -> Iterator[object]:
    """Numbers just out of the bounds of an annotated type."""
    kind, *bounds = typing.get_args(hint)
    for bound in bounds:
        match bound:
            case annotated_types.Ge(ge=end):
                yield kind(end) - 1
            case annotated_types.Gt(gt=end) | annotated_types.Lt(lt=end):
                yield kind(end)
            case annotated_types.Le(le=end):
                yield kind(end) + 1
            case annotated_types.Interval():
                yield from _beyond(Annotated[(kind, *bound)])
            case annotated_types.MultipleOf(multiple_of=step):
                yield kind(step) + 1
            case annotated_types.MinLen(min_length=count) if count:
                yield kind()
            case _:
                pass
