"""The checker of annotated shapes that tests run the library with."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, which leaves graphs alone: a compiler follows neither its checks nor what its errors are made of."""
    strict = beartype(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return (function if torch.compiler.is_compiling() else strict)(*arguments, **named)

    return call
