"""States of several parts as one: of a mix over heads, a layer, a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.options import registered_name
from regard.owner import Owner
from regard.state import State


@dataclass(frozen=True)
class States(State):
    """Named states side by side, of the parts of a mechanism, a layer or a model."""

    aligned: ClassVar[bool] = True
    """every part counts the same slots"""

    parts: Mapping[str, State]

    @property
    def length(self) -> int:  # type: ignore[override]
        return next((part.length for part in self.parts.values()), 0)

    def __getitem__(self, name: str) -> State:
        return self.parts[name]

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": x for name, part in self.parts.items() for key, x in part.tensors().items()}

    def shared(self) -> frozenset[str]:
        return frozenset(f"{name}.{key}" for name, part in self.parts.items() for key in part.shared())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return self._of({name: part.with_tensors(_below(tensors, name)) for name, part in self.parts.items()})

    def dump(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": x for name, part in self.parts.items() for key, x in part.dump().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        strange = [key for key in tensors if not any(key.startswith(f"{name}.") for name in self.parts)]
        if strange:
            raise ShapeError(f"this state has the parts {sorted(self.parts)}, got {sorted(strange)}")
        parts = {name: part.load(_below(tensors, name)) for name, part in self.parts.items()}
        lengths = {name: part.length for name, part in parts.items()}
        if self.aligned and len(set(lengths.values())) > 1:
            raise ShapeError(f"the parts of a state count the same slots, got {lengths}")
        return self._of(parts)

    def where(self, rows: Tensor, other: Self) -> Self:
        """Every part in its rows; as `State.where`.

        Raises:
            ShapeError: other parts, or a part that has no rows in common.
        """
        if self.parts.keys() != other.parts.keys():
            raise ShapeError(f"states of {sorted(self.parts)} and {sorted(other.parts)} have no rows in common")
        return self._of({name: part.where(rows, other.parts[name]) for name, part in self.parts.items()})

    def rewind(self, count: int) -> Self:
        """Every part before the newest `count` slots; no part is changed if one cannot.

        Raises:
            UnsupportedError: a part cannot.
        """
        return self._of({name: part.rewind(count) for name, part in self.parts.items()})

    def _of(self, parts: Mapping[str, State]) -> Self:
        """Other parts, of whom these are."""
        state = type(self)(parts)
        if self.of is not None and not torch.compiler.is_compiling():
            state.belong(self.of)
        return state


_OF = "of"
"""the part of a dump that says whose state it is"""


def described(owner: Owner) -> str:
    """A kind with its options, as they are told apart: `recent(length=5)`."""
    told = ", ".join(f"{name}={value!r}" for name, value in owner.options.items())
    return f"{registered_name(owner.kind)}({told})"


def signed(tensors: Mapping[str, Tensor], owner: Owner | None) -> dict[str, Tensor]:
    """A dump that says whose state it is, as text in bytes; of an owner that is not known, as it is."""
    if owner is None:
        return dict(tensors)
    return {**tensors, _OF: torch.frombuffer(bytearray(described(owner).encode()), dtype=torch.uint8)}


def unsigned(tensors: Mapping[str, Tensor], owner: Owner | None) -> dict[str, Tensor]:
    """What `signed` was given. A dump that says nothing, as those of earlier versions, is taken as it is.

    Raises:
        ShapeError: the state of another owner than this one, or of this one under other options.
    """
    said = tensors.get(_OF)
    if said is not None and owner is not None:
        text = bytes(said.tolist()).decode(errors="replace") if said.dtype == torch.uint8 and said.ndim == 1 else ""
        if text != described(owner):
            raise ShapeError(
                f"this is the state of {text or 'nothing known'}, must be of {described(owner)}; begin anew"
            )
    return {name: x for name, x in tensors.items() if name != _OF}


class Signed(States):
    """Template: states whose files say whose they are, since the same numbers under other options would mean others."""

    def dump(self) -> dict[str, Tensor]:
        """As `State.dump`, and whose state it is."""
        return signed(super().dump(), self.of)

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        """As `State.load`.

        Raises:
            ShapeError: also the state of another owner, or of this one under other options.
        """
        return super().load(unsigned(tensors, self.of))


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
