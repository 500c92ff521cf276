"""Whose state it is."""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType, NoneType
from typing import Self

from torch import Tensor, nn


def registered_name(cls: type) -> str:
    """The catalog name of a mechanism class: `DenseSynthesizer` -> `dense_synthesizer`, `Local2d` -> `local_2d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])(?=[0-9])", "_", cls.__name__).lower()


@dataclass(frozen=True)
class Owner:
    """A mechanism, or a cache policy, under its options, which may all decide what the numbers of its states mean."""

    kind: type
    options: Mapping[str, object]
    """What is not equal to its own copy (modules, tensors, callable objects) counts by its type, so that a copied
    mechanism goes on from the state of the first. `impl` says only whether it is the definition, whose states are its
    own; whatever else computes the mechanism goes on from any of its states."""
    noun: str = "another mechanism"
    """what its states belong to, for the refusal of a mechanism whose they are not"""

    @classmethod
    def of(cls, kind: type, options: Mapping[str, object], noun: str = "another mechanism") -> Self:
        """The owner of the states of what is built with these options, defaults filled in."""
        told = {name: x if _lasts(x) else type(x) for name, x in options.items()}
        if "impl" in told and told["impl"] != "reference":
            told["impl"] = "auto"
        return cls(kind, told, noun)

    def __str__(self) -> str:
        """A kind with its options, as they are told apart: `recent(length=5)`. The same in every process."""
        told = ", ".join(f"{name}={_told(value)}" for name, value in self.options.items())
        return f"{registered_name(self.kind)}({told})"

    def unlike(self, other: "Owner") -> list[str]:
        """Names of the options in which another owner of this kind differs."""
        return [name for name, value in self.options.items() if value != other.options[name]]


def _lasts(value: object) -> bool:
    """Whether a copy of an option is equal to it."""
    if isinstance(value, str | bool | int | float | NoneType | FunctionType):
        return True
    return not isinstance(value, nn.Module | Tensor) and (copy.deepcopy(value) == value) is True


def _told(value: object) -> str:
    """An option as text, without where it lies in memory."""
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
