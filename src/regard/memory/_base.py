"""Memories of a layer: earlier segments as keys in front, or as a part to read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.attention import registered_name
from regard.core.dump import require_tag, untagged
from regard.core.errors import ShapeError
from regard.core.info import Heads
from regard.core.options import Configured, option, weight
from regard.core.randomness import drawn_on_cpu
from regard.core.state import Summary

Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""keys and values of hidden states, by the layer's projections without gradients to their weights"""


class MemoryState(Summary):
    """The content of a memory by name, and under `waiting` the inputs of a segment that is not over yet.

    `length` counts every position that was ever written. A mask appears beside what it masks once one was given.
    """

    @property
    def waiting(self) -> int:
        """Positions of the segment that is not over."""
        return self.content["waiting"].shape[1] if "waiting" in self.content else 0

    def wait(self, x: Tensor, key_mask: Tensor | None) -> "MemoryState":
        """The state with more inputs of the running segment."""
        content = dict(self.content)
        pending = join(content.pop("waiting", None), content.pop("waiting_mask", None), x.detach(), key_mask)
        content["waiting"], mask = pending
        if mask is not None:
            content["waiting_mask"] = mask
        return MemoryState(content, self.length, self.spec_tag)

    def rewind(self, count: int) -> "MemoryState":
        """The state before the newest `count` positions, as long as they are of the segment that is not over.

        Raises:
            UnsupportedError: a segment that is over was written, and what left the memory for it is gone.
        """
        if not 0 < count <= self.waiting:
            return cast("MemoryState", Summary.rewind(self, count))
        left, content = self.waiting - count, dict(self.without_waiting().content)
        if left:
            content |= {name: x[:, :left] for name, x in self.content.items() if name.startswith("waiting")}
        return MemoryState(content, self.length, self.spec_tag)

    def where(self, rows: Tensor, other: "MemoryState") -> "MemoryState":
        """As `State.where`; what has no mask is real."""
        masks = {name: x for name, x in [*self.content.items(), *other.content.items()] if name.endswith("mask")}
        real = {name: torch.ones_like(x) for name, x in masks.items()}
        ours, theirs = (MemoryState({**real, **state.content}, state.length, state.spec_tag) for state in (self, other))
        return cast("MemoryState", Summary.where(ours, rows, theirs))

    def load(self, tensors: Mapping[str, Tensor]) -> "MemoryState":
        """As `State.load`; masks, and a segment that is not over, may be there or not.

        Raises:
            ShapeError: as `State.load`.
        """
        tensors = untagged(tensors, self.spec_tag)
        own = {name: x for name, x in self.without_waiting().content.items() if not name.endswith("mask")}
        more = tensors.keys() - own.keys() - {"length", "waiting"}
        if not tensors.keys() >= {"length", *own} or any(not name.endswith("mask") for name in more):
            raise ShapeError(f"this memory has {sorted({'length', *own})}, got {sorted(tensors)}")
        content = {name: x for name, x in tensors.items() if name != "length"}
        for name, like in own.items():
            x = content[name]
            slots = {0, _slots(like)}  # the axes that may be of any size
            sizes = [(at, size) for at, size in enumerate(like.shape) if at not in slots]
            if x.ndim != like.ndim or any(x.shape[at] != size for at, size in sizes):
                raise ShapeError(f"{name} of this memory must be like {tuple(like.shape)}, got {tuple(x.shape)}")
        if len({x.shape[0] for x in content.values()}) > 1:
            shapes = {name: tuple(x.shape) for name, x in content.items()}
            raise ShapeError(f"the tensors of a memory share their batch, got {shapes}")
        for name, x in content.items():
            kind = torch.bool if name.endswith("mask") else own[name].dtype if name in own else torch.float32
            if not x.is_floating_point() if kind.is_floating_point else x.dtype != kind:
                raise ShapeError(f"{name} of this memory must be {kind}, got {x.dtype}")
        length = tensors["length"]
        if length.ndim or length.dtype != torch.int64 or int(length) < 0:
            raise ShapeError(f"the length of a memory is one integer, at least 0; got {length.tolist()}")
        return MemoryState(content, int(length), self.spec_tag)

    def without_waiting(self) -> "MemoryState":
        """The content alone."""
        content = {name: x for name, x in self.content.items() if not name.startswith("waiting")}
        return MemoryState(content, self.length, self.spec_tag)


def _slots(x: Tensor) -> int:
    """The axis of the slots: of (batch, heads, slots, width), (batch, slots, width); of (batch, width), none."""
    return {4: 2, 3: 1}.get(x.ndim, 0)


class Memory(Configured, ABC):
    """A layer's memory of earlier segments, in a state that is passed in and out.

    A memory is read in two ways, of which it has one or both. Its hidden states lead the segment as its past
    (`leading`); and it is searched with the queries (`searched`, `read`), and mixes what it finds with the mechanism's
    values.

    Args:
        heads: the heads of the layer.
        dim: width of the hidden states.

    Raises:
        ConfigError: an unknown option, one of another type or out of bounds.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that checks build, small enough to be full after a few positions"""
    masks: ClassVar[Mapping[str, str]] = {}
    """content with slots -> the mask of it"""
    searched: ClassVar[bool] = False
    """read by `read`, besides `leading`"""

    heads: Heads = option(kw_only=False)
    dim: int = option(kw_only=False)
    spec_tag: str = weight()
    """tag of its states"""

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        @drawn_on_cpu
        def __init__(self, heads, dim, **options):
            super().__init__()
            self.heads, self.dim = heads, dim
            self.configure(options, f"memory {registered_name(type(self))}")
            self.spec_tag = f"memory {self.tag_for(heads)}"
            self.setup()

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return "heads", "dim"

    def setup(self) -> None:
        """Draw the weights."""

    @property
    def losses(self) -> Mapping[str, float]:
        """Losses that `write` returns in training, with their default weights."""
        return {}

    @property
    def compares(self) -> bool:
        """Whether it compares the layer's queries with keys."""
        return False

    def check_state(self, state: MemoryState) -> None:
        """Refuse the state of another memory, or of this one with other options.

        Raises:
            ShapeError: it is.
        """
        if state.spec_tag != self.spec_tag:
            require_tag(state.spec_tag, self.spec_tag, f"memory {registered_name(type(self))}: ")

    @property
    def leads(self) -> bool:
        """Whether `leading` ever gives slots."""
        return True

    @abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> MemoryState:
        """The content before the first segment, with `spec_tag` as its tag."""

    def leading(self, state: MemoryState) -> tuple[Float[Tensor, "batch past dim"], Bool[Tensor, "batch past"] | None]:
        """The remembered hidden states, oldest first, cut from the autograd graph, and which are real (None: all).

        A memory that is only searched has none.
        """
        first = next(x for x in state.content.values() if x.is_floating_point())
        return first.new_zeros(len(first), 0, self.dim), None

    def read(
        self,
        q: Float[Tensor, "batch heads queries query_dim"],
        local: Float[Tensor, "batch heads queries value"],
        state: MemoryState,
    ) -> Float[Tensor, "batch heads queries value"]:
        """The mechanism's values mixed with those that the queries, before rotation, find here."""
        raise NotImplementedError(f"{type(self).__name__} is no memory that is searched")

    def forget(self, state: MemoryState, rows: Bool[Tensor, " batch"]) -> MemoryState:
        """The state in which these rows remember nothing, as where a document ends and another one begins.

        Slots are shared by the batch, so theirs stay, as ones that are not real.
        """
        blank = {name: torch.zeros_like(x) for name, x in state.content.items()}
        for name, mask in {**self.masks, "waiting": "waiting_mask"}.items():
            if name in blank:
                x = blank[name]
                blank[mask] = x.new_zeros((len(x), x.shape[_slots(x)]), dtype=torch.bool)
        return MemoryState(blank, state.length, state.spec_tag).where(rows, state)

    @abstractmethod
    def write(
        self,
        state: MemoryState,
        x: Float[Tensor, "batch length dim"],
        *,
        q: Float[Tensor, "batch heads length query_dim"],
        k: Float[Tensor, "batch kv_heads length key_dim"],
        v: Float[Tensor, "batch kv_heads length value"],
        project: Project,
        key_mask: Bool[Tensor, "batch length"] | None = None,
    ) -> tuple[MemoryState, dict[str, Tensor]]:
        """The content after a segment, and in training the losses that `losses` names.

        Args:
            state: the content before it; never modified.
            x: the layer's inputs.
            q, k, v: their queries, keys and values, before rotation; those of no position will do where it `compares`
                nothing.
            project: keys and values of other hidden states, by detached weights.
            key_mask: True = real.
        """


def join(
    old: Tensor | None, old_mask: Tensor | None, new: Tensor, new_mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Hidden states one behind the other, and their mask; None: all real. What is masked is 0, so that no NaN stays."""
    if new_mask is not None:
        new = new.masked_fill(~new_mask[..., None], 0)
    if old is None:
        return new, new_mask
    mask = None
    if old_mask is not None or new_mask is not None:
        parts = (old, old_mask), (new, new_mask)
        mask = torch.cat([x.new_ones(x.shape[:2], dtype=torch.bool) if m is None else m for x, m in parts], 1)
    return torch.cat([old, new], 1), mask
