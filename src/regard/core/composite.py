"""States of several parts as one: of a mix over heads, a layer, a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from regard.core.dump import tagged, untagged
from regard.core.errors import ShapeError
from regard.core.state import State


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
        parts = {f"{name}.{key}": x for name, part in self.parts.items() for key, x in part.dump().items()}
        return tagged(parts, self.spec_tag)

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        tensors = untagged(tensors, self.spec_tag)
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
        """Other parts under the same tag."""
        state = type(self)(parts)
        if self.spec_tag is not None:
            state.set_tag(self.spec_tag)
        return state


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
