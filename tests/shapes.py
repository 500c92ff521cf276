"""The checker of annotated shapes that tests run the library with."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jaxtyping
import torch
from beartype import beartype

FIRST, THEN = 256, 17
"""calls of a function that are all checked, and of how many one is afterwards: a check is slower than small calls. A
prime, so that calls that take turns (queries and keys, the layers of a model) all get theirs"""
_jaxtyped = jaxtyping.jaxtyped


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, which leaves graphs alone: a compiler follows neither its checks nor what its errors are made of."""
    strict = beartype(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return (function if torch.compiler.is_compiling() else strict)(*arguments, **named)

    return call


def some_calls(*, typechecker: Callable[..., Any] | None) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped`, of a function that is called often only for some of its calls."""
    decorate = _jaxtyped(typechecker=typechecker)

    def decorated(function: Any) -> Any:
        strict = decorate(function)
        if typechecker is None or not callable(function) or isinstance(function, type):
            return strict
        calls = itertools.count()

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*arguments, **named)
            number = next(calls)
            return (strict if number < FIRST or not number % THEN else function)(*arguments, **named)

        return call

    return decorated
