"""States, the memory of a mechanism between calls: immutable, and the append-only buffer that growing ones share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from regard.core.dump import SLOT_AXIS, loaded, tagged, untagged
from regard.core.errors import ShapeError, UnsupportedError
from regard.core.precision import accumulation_dtype


class State(ABC):
    """The past, as one mechanism needs it. Passing a state never changes it, and it stays usable afterwards.

    A state and all that grew from it share a buffer without a lock, so they belong to one thread. Threads may share a
    mechanism, each with a state of its own; `state.map(torch.clone)` is a copy for another thread.

    Example:
        >>> import regard
        >>> local = regard.build("local(window=2)", regard.Heads(count=1, key_dim=4, causal=True))
        >>> state = local(*torch.randn(3, 1, 1, 5, 4), state=local.initial_state(batch=1)).state
        >>> state.length, state.nbytes  # of 5 slots it keeps 2 x (4 + 4) numbers of 4 bytes
        (5, 64)
    """

    length: int
    """slots: every key ever given, kept or not"""
    spec_tag: str | None = None
    """the spec and heads of the mechanism that made it; None: none, as of one made by hand, which is not compared"""

    def set_tag(self, spec_tag: str) -> None:
        """Set the tag, in place: for the mechanism that made the state. The values stay as they are."""
        object.__setattr__(self, "spec_tag", spec_tag)

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The kept content by name; with `length` it is all of the state."""

    def storage(self) -> Mapping[str, Tensor]:
        """The tensors as they lie, room for later slots included."""
        return self.tensors()

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same state with other content under the same names."""

    def shared(self) -> frozenset[str]:
        """Names of tensors without a batch axis."""
        return frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of the kept content."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def select(self, rows: Tensor) -> Self:
        """The state of some of the batch rows, in the order given, repeats allowed (beam search)."""
        shared = self.shared()
        return self.with_tensors(
            {name: x if name in shared else x.index_select(0, rows) for name, x in self.tensors().items()}
        )

    def where(self, rows: Tensor, other: Self) -> Self:
        """This state in the batch rows where `rows` (bool) is True, `other` elsewhere; both count the same slots.

        Raises:
            ShapeError: states of different lengths or contents, or that keep other slots; rows of another batch.
        """
        ours, theirs, shared = self.tensors(), other.tensors(), self.shared()
        shapes, others = ({name: tuple(x.shape) for name, x in tensors.items()} for tensors in (ours, theirs))
        if self.length != other.length or shapes != others:
            raise ShapeError(
                f"states of {self.length} and {other.length} slots with {shapes} and {others} have no rows in common; "
                "bring both to the same slots of the same batch first"
            )
        for name in shared & ours.keys():
            if not torch.equal(ours[name], theirs[name]):
                raise ShapeError(f"states that keep other slots have no rows in common: their {name} differ")
        picked: dict[str, Tensor] = {}
        for name, x in ours.items():
            if name not in shared and rows.shape != x.shape[:1]:
                raise ShapeError(f"rows must be bool (batch={x.shape[0]},), got {rows.dtype} {tuple(rows.shape)}")
            picked[name] = x if name in shared else torch.where(rows.view(-1, *[1] * (x.ndim - 1)), x, theirs[name])
        return self.with_tensors(picked)

    def rewind(self, count: int) -> Self:
        """The state before the newest `count` slots, where that can still be told.

        Raises:
            UnsupportedError: what these slots were added to is gone; keep the earlier state instead.
            ShapeError: more slots than there are.
        """
        if not 0 <= count <= self.length:
            raise ShapeError(f"a state of {self.length} slots cannot give back {count}")
        if not count:
            return self
        raise UnsupportedError(
            "a state of sums cannot give slots back; keep the earlier state, which stays usable, and append from it"
        )

    def detach(self) -> Self:
        """The same state, cut from the autograd graph."""
        return self.with_tensors({name: x.detach() for name, x in self.tensors().items()})

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same state with every tensor changed (moved to a device, for example)."""
        return self.with_tensors({name: change(x) for name, x in self.tensors().items()})

    def dump(self) -> dict[str, Tensor]:
        """Everything as tensors, `spec_tag` too, for a safetensors file; `load` is the inverse."""
        content = {name: x.contiguous() for name, x in self.tensors().items()}
        return tagged({**content, "length": torch.tensor(self.length)}, self.spec_tag)

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        """The state that `dump` wrote; called on any state of the same mechanism (an initial one).

        Raises:
            ShapeError: tensors that are missing, not its own, or of other shapes; another `spec_tag`.
        """


@dataclass(frozen=True)
class Summary(State):
    """A state of constant size: named tensors with the batch in front."""

    content: Mapping[str, Tensor]
    length: int = 0
    spec_tag: str | None = None

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.content)

    def storage(self) -> Mapping[str, Tensor]:
        return self.content

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(dict(tensors), self.length, self.spec_tag)

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        length, content = loaded(untagged(tensors, self.spec_tag), self.content)
        return type(self)(content, length, self.spec_tag)

    def __getitem__(self, name: str) -> Tensor:
        return self.content[name]


@dataclass
class Tape:
    """Append-only storage. `filled` slots are taken; a state whose end is `filled` may append in place."""

    data: dict[str, Tensor]
    filled: int
    capacity: int
    fits: object = None
    """the last call that `Mechanism.check_state` found it to fit: no tensor of a tape changes its shape"""

    def claim(self, stop: int, count: int) -> bool:
        """Take `count` slots behind `stop`, if there is room and no other state has taken them."""
        free = self.filled == stop and stop + count <= self.capacity
        if free:
            self.filled += count
        return free


@dataclass(frozen=True)
class Slots(State):
    """A state that keeps things per slot (keys, values, buckets, ...): slots [start, stop) of a tape.

    States that grow from one another share the tape. Appending writes behind the end if nobody else has, else it
    copies, so old states stay valid and n appended tokens cost O(n) copies in all. Autograd and compiled graphs, which
    allow no writing in place, concatenate.

    The names and shapes are the mechanism's choice (see SLOT_AXIS). `positions` (slots,), where present, is shared by
    the batch. A `key_mask` (batch, slots) appears once a mask is given; until then every slot is real.
    """

    tape: Tape
    start: int = 0
    stop: int = 0
    length: int = 0
    steady: Mapping[str, Tensor] = field(default_factory=dict)
    """named tensors of constant size kept beside the slots"""
    spec_tag: str | None = None

    @classmethod
    def empty(cls, **like: Tensor) -> Self:
        """A state without slots; each argument has 0 slots and fixes the shape, dtype and device of its name."""
        return cls(Tape(dict(like), 0, 0))

    @property
    def kept(self) -> int:
        """Slots still stored."""
        return self.stop - self.start

    def view(self) -> dict[str, Tensor]:
        """The kept slots by name, without a copy."""
        start, kept = self.start, self.stop - self.start
        return {name: x.narrow(SLOT_AXIS[x.ndim], start, kept) for name, x in self.tape.data.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {**self.view(), **self.steady}

    def storage(self) -> Mapping[str, Tensor]:
        return {**self.tape.data, **self.steady} if self.steady else self.tape.data

    def shared(self) -> frozenset[str]:
        return frozenset({"positions"})

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        tape = Tape({name: tensors[name] for name in self.tape.data}, self.kept, self.kept)
        steady = {name: tensors[name] for name in self.steady}
        return type(self)(tape, 0, self.kept, self.length, steady, self.spec_tag)

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        slots = frozenset({*self.tape.data, "key_mask"})
        length, content = loaded(untagged(tensors, self.spec_tag), self.tensors(), slots=slots)
        steady = {name: content.pop(name) for name in self.steady}
        first = next(iter(content.values()))
        kept = first.shape[SLOT_AXIS[first.ndim]]
        if self.kept <= self.length and kept > length:  # one that begins with blank slots keeps more than it counts
            raise ShapeError(f"a state of {kept} kept slots counts at least as many, got length={length}")
        return type(self)(Tape(content, kept, kept), 0, kept, length, steady, self.spec_tag)

    def with_steady(self, **steady: Tensor) -> Self:
        """The same slots with other constant-size content beside them."""
        return type(self)(self.tape, self.start, self.stop, self.length, steady)

    def append(self, key_mask: Tensor | None = None, **new: Tensor) -> Self:
        """The state with new slots behind its end.

        Args:
            key_mask: (batch, new slots), True = real; None: all real.
            new: the new slots of every name given to `empty`.

        Raises:
            ShapeError: slots of a wider dtype than the state's, whose digits would be lost.
        """
        tape, data = self.tape, self.tape.data
        for name, x in new.items():
            kept = data[name].dtype
            if x.dtype != kept and torch.promote_types(x.dtype, kept) != kept:
                raise ShapeError(
                    f"the state keeps {name} as {kept}, got {x.dtype}; begin with initial_state(batch, dtype={x.dtype})"
                )
        first = next(iter(new.values()))
        count = first.shape[SLOT_AXIS[first.ndim]]
        if not count:
            return self
        masked = "key_mask" in data
        masks = key_mask is not None and not masked
        if masks or masked:
            real = torch.ones(first.shape[0], count, dtype=torch.bool, device=first.device)
            new["key_mask"] = real if key_mask is None else key_mask
        start, end, length = self.start, self.stop, self.length + count
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # see the docstring
            old = self._masked() if masks else self.view()
            data = {name: torch.cat([x, new[name]], SLOT_AXIS[x.ndim]) for name, x in old.items()}
            stop = end - start + count
            return type(self)(Tape(data, stop, stop), 0, stop, length, self.steady)
        alike = first.is_inference() == next(iter(data.values())).is_inference()
        if masks or not alike or not tape.claim(end, count):
            tape, start, end = self._roomy(self._masked() if masks else self.view(), count), 0, end - start
        for name, x in tape.data.items():
            x.narrow(SLOT_AXIS[x.ndim], end, count).copy_(new[name])
        return type(self)(tape, start, end + count, length, self.steady)

    def _masked(self) -> dict[str, Tensor]:
        """The kept slots, all of them real."""
        old = self.view()
        first = next(iter(old.values()))
        return {**old, "key_mask": torch.ones(first.shape[0], self.kept, dtype=torch.bool, device=first.device)}

    def _roomy(self, old: Mapping[str, Tensor], count: int) -> Tape:
        """A new tape that holds the kept slots and has taken `count` behind them, with room to double."""
        capacity = max(2 * (self.kept + count), 64)
        data: dict[str, Tensor] = {}
        for name, x in old.items():
            axis = SLOT_AXIS[x.ndim]
            data[name] = x.new_empty([*x.shape[:axis], capacity, *x.shape[axis + 1 :]])
            data[name].narrow(axis, 0, self.kept).copy_(x)
        return Tape(data, self.kept + count, capacity)

    def where(self, rows: Tensor, other: Self) -> Self:
        """As `State.where`; a state without a mask has real slots only."""
        if ("key_mask" in self.tape.data) != ("key_mask" in other.tape.data):
            return self._with_mask().where(rows, other._with_mask())
        return super().where(rows, other)

    def _with_mask(self) -> Self:
        data = self.view() if "key_mask" in self.tape.data else self._masked()
        return type(self)(Tape(data, self.kept, self.kept), 0, self.kept, self.length, self.steady, self.spec_tag)

    def rewind(self, count: int) -> Self:
        """The state before the newest `count` slots. Every other state stays usable: the next append copies the tape.

        A window gets back the slots that these had pushed out, as long as the tape still holds them.

        Raises:
            UnsupportedError: they are gone, or the state keeps picked slots or content of constant size.
            ShapeError: more slots than there are.
        """
        if self.steady or not 0 < count <= self.length:
            return super().rewind(count)
        gone = self.length - self.kept
        restored = min(count, gone)
        if ("positions" in self.tape.data and gone) or restored > self.start or count > self.stop:
            raise UnsupportedError(
                f"a state that has dropped {gone} of its {self.length} slots cannot give {count} back; keep the "
                "earlier state, which stays usable, and append from it"
            )
        return replace(self, start=self.start - restored, stop=self.stop - count, length=self.length - count)

    def drop(self, count: int) -> Self:
        """The state without its first `count` kept slots; no copy."""
        return type(self)(self.tape, self.start + count, self.stop, self.length, self.steady)

    def keep(self, picked: Tensor) -> Self:
        """The state with only the picked kept slots (int indices into the kept ones, ascending)."""
        data = {name: x.index_select(SLOT_AXIS[x.ndim], picked) for name, x in self.view().items()}
        return type(self)(Tape(data, len(picked), len(picked)), 0, len(picked), self.length, self.steady)


Kept = torch.dtype | Literal["call", "accumulation"]
"""the dtype of an entry: that of the call's keys and values, what these are summed in, or a fixed one"""


@dataclass(frozen=True)
class Entry:
    """One tensor of a state: (batch, *shape) at a constant size, or (batch, [heads], slots, [dim]) that grows."""

    shape: tuple[int, ...]
    slots: bool
    dtype: Kept = "call"
    fill: float = 0.0
    batched: bool = True

    def dtype_of(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype under calls of `dtype`."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return dtype if self.dtype == "call" else accumulation_dtype(dtype)

    def empty(self, batch: int, device: torch.device | None, dtype: torch.dtype) -> Tensor:
        """The tensor before the first slot."""
        if type(batch) is int and batch < 0:
            raise ShapeError(f"a state has at least 0 rows, got {batch}")
        shape = [batch, *self.shape] if self.batched else list(self.shape)
        if self.slots:
            shape.insert(SLOT_AXIS[len(shape) + 1], 0)
        return torch.full(shape, self.fill, device=device, dtype=self.dtype_of(dtype))

    def holds(self, x: Tensor, batch: int, dtype: torch.dtype) -> bool:
        """Whether `x` is this entry of a state of `batch` rows; sums are at least as wide as calls of `dtype` ask."""
        shape, axis = tuple(x.shape), SLOT_AXIS.get(x.ndim)
        if self.slots and axis is not None:
            shape = shape[:axis] + shape[axis + 1 :]
        if shape != ((batch, *self.shape) if self.batched else self.shape):
            return False
        wanted = x.dtype if self.slots else self.dtype_of(dtype)
        return wanted == x.dtype or torch.promote_types(x.dtype, wanted) == x.dtype

    def nbytes(self, batch: int, slots: int, dtype: torch.dtype) -> int:
        """Bytes with `slots` kept slots."""
        numbers = math.prod(self.shape) * (batch if self.batched else 1) * (slots if self.slots else 1)
        return numbers * self.dtype_of(dtype).itemsize


def per_slot(*shape: int, dtype: Kept = "call") -> Entry:
    """An entry with one item per slot: (), (heads) or (heads, dim) numbers of every batch row."""
    return Entry(shape, True, dtype)


def slot_positions() -> Entry:
    """The slots that are kept, where they may have holes; the same for every batch row."""
    return Entry((), True, torch.long, batched=False)


def constant(*shape: int, dtype: Kept = "call", fill: float = 0.0) -> Entry:
    """An entry of constant size, `shape` numbers of every batch row."""
    return Entry(shape, False, dtype, fill)


def begin(
    layout: Mapping[str, Entry], batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> "Slots | Summary":
    """The state of a layout before the first slot."""
    content = {name: entry.empty(batch, device, dtype or torch.get_default_dtype()) for name, entry in layout.items()}
    slots = {name: x for name, x in content.items() if layout[name].slots}
    steady = {name: x for name, x in content.items() if not layout[name].slots}
    return Slots.empty(**slots).with_steady(**steady) if slots else Summary(steady)
