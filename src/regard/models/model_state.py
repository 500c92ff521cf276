"""The past of a decoder, of all of its parts together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, cast

from regard.core.composite import States
from regard.core.errors import ShapeError, UnsupportedError
from regard.core.state import State, Summary
from regard.memory import MemoryState
from regard.models.depth import Threads


@dataclass(frozen=True)
class Led(States):
    """States of mechanisms that count the slots of their own memories too, of which each layer may have others."""

    aligned: ClassVar[bool] = False


@dataclass(frozen=True)
class ModelState(States):
    """The past of a decoder: `layers`, the states of its mechanisms in the running segment; `memories`, what earlier
    segments left; `convolution`, the last embeddings that the short convolution needs. Each where there is one."""

    aligned: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        layers: Sequence[State | None],
        memories: Sequence[MemoryState | None],
        convolution: Summary | None,
    ) -> Self:
        """From what each block keeps; None: nothing."""
        parts: dict[str, State] = {}
        for name, states in (("layers", layers), ("memories", memories)):
            kept = {str(at): part for at, part in enumerate(states) if part is not None}
            if kept:
                led = name == "layers" and any(memory is not None for memory in memories)
                parts[name] = Led(kept) if led else States(kept)
        if convolution is not None:
            parts["convolution"] = convolution
        return cls(parts)

    @property
    def length(self) -> int:  # type: ignore[override]
        """Tokens that were ever read."""
        if "memories" in self.parts:
            memory = cast(MemoryState, next(iter(cast(States, self.parts["memories"]).parts.values())))
            return memory.length + memory.waiting
        return super().length

    @property
    def streaming(self) -> bool:
        """Whether mechanisms keep the running segment."""
        return "layers" in self.parts

    @property
    def running(self) -> int:
        """Tokens of the segment that is not over."""
        if "memories" not in self.parts:
            return self.length
        return cast(MemoryState, next(iter(cast(States, self.parts["memories"]).parts.values()))).waiting

    def rewind(self, count: int) -> Self:
        """As `State.rewind`; of a decoder with a memory, tokens of the running segment.

        Raises:
            UnsupportedError: a part cannot; a segment that is over was written to the memories.
            ShapeError: more tokens than were read.
        """
        if not 0 <= count <= self.length:
            raise ShapeError(f"a state of {self.length} tokens cannot give back {count}")
        if count > self.running:
            raise UnsupportedError(
                f"the running segment has {self.running} tokens and cannot give back {count}: those before it are in "
                "the memories, which others left for them; keep the earlier state, which stays usable"
            )
        return super().rewind(count)

    def threads(self, blocks: int) -> Threads:
        """The past of every block."""
        layers, memories = (
            cast("States | None", self.parts.get(name)) or States({}) for name in ("layers", "memories")
        )
        numbers = [str(at) for at in range(blocks)]
        remembered = [cast("MemoryState | None", memories.parts.get(at)) for at in numbers]
        return Threads([layers.parts.get(at) for at in numbers], remembered)

    @property
    def convolution(self) -> Summary | None:
        """The short convolution's last inputs."""
        return cast("Summary | None", self.parts.get("convolution"))
