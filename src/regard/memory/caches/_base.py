"""The templates of cache policies: what a layer asks, and the policies that drop slots."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.attention import Attention, State, registered_name
from regard.core.bias import ScoreBias
from regard.core.call import Attended
from regard.core.composite import States
from regard.core.errors import ConfigError, ShapeError, UnsupportedError, kind_of
from regard.core.info import Heads
from regard.core.options import Configured, option, weight
from regard.core.randomness import drawn_on_cpu
from regard.core.state import Slots
from regard.memory.caches._rows import Seen, together
from regard.memory.caches._slots import Rows, only_slots, pick


@dataclass(frozen=True)
class CacheState(States):
    """A state whose slots a policy chose: `slots`, what the mechanism keeps of them, for every head of keys its own;
    `kept`, where they are (`slot`, -1 for padding) and, under policies that weigh, their summed weights (`weight`)."""

    @property
    def slots(self) -> Slots:
        """What the mechanism keeps."""
        return cast(Slots, self.parts["slots"])

    @property
    def kept(self) -> Slots:
        """(batch, kv_heads, slots) each: where they are, and what they weighed."""
        return cast(Slots, self.parts["kept"])

    def rewind(self, count: int) -> "CacheState":
        """As `Slots.rewind`, until a slot was dropped.

        Raises:
            UnsupportedError: dropped slots are gone; weights of later rows cannot be taken back.
        """
        if count and "weight" in self.kept.tape.data:
            raise UnsupportedError(
                "weights are sums, and the policy chooses by them: what later rows added cannot be taken back; keep "
                "the earlier state, which stays usable, and append from it"
            )
        return super().rewind(count)


class Cache(Configured, ABC):
    """A policy for the state of one attention layer, which asks it with the queries, in prefill and in decoding.

    The rows of a call are taken one after the other: append, attend to all that is kept, then reduce. Every split of a
    text into calls gives the same. It serves evaluation.

    Args:
        heads: the heads of the mechanism.

    Raises:
        ConfigError: an unknown option, one of another type or out of bounds, or options that exclude each other.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that checks build, small enough to reduce the state of a few positions"""
    pads: ClassVar[bool] = True
    """whether rows of unequal length may share a batch"""
    waits: ClassVar[bool] = False
    """whether it keeps everything until the caller says when it chooses, see `compressing`"""

    heads: Heads = option(kw_only=False)
    spec_tag: str = weight()
    """tag of its states"""

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        @drawn_on_cpu
        def __init__(self, heads, **options):
            super().__init__()
            self.heads = heads
            self.configure(options, f"cache {registered_name(type(self))}")
            self.spec_tag = f"cache {self.tag_for(heads)}"
            self.check_options()
            self.setup()

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return ("heads",)

    def check_options(self) -> None:
        """Refuse options that exclude each other.

        Raises:
            ConfigError: they do.
        """

    def setup(self) -> None:
        """Set what is no option."""

    @abstractmethod
    def check(self, attention: Attention) -> None:
        """Refuse a mechanism whose state it cannot reduce.

        Raises:
            UnsupportedError: it keeps no list of slots, or the policy needs what it does not have.
        """

    @abstractmethod
    def empty(self, slots: Slots) -> States:
        """The state before the first slot, made of that of the mechanism."""

    def initial_state(
        self,
        attention: Attention,
        batch: int,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> States:
        """The state before the first slot."""
        state = self.empty(cast(Slots, attention.initial_state(batch, device=device, dtype=dtype)))
        state.set_tag(self.spec_tag)
        return state

    @abstractmethod
    def state_nbytes(self, attention: Attention, batch: int, length: int, dtype: torch.dtype) -> int:
        """Bytes of the state after `length` slots without padding, by the formula of the policy."""

    def forward(
        self,
        attention: Attention,
        q: Float[Tensor, "batch heads queries query_dim"],
        k: Float[Tensor, "batch kv_heads keys key_dim"],
        v: Float[Tensor, "batch kv_heads keys value"],
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        bias: ScoreBias | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
        state: State | None = None,
        counted: Bool[Tensor, "batch keys"] | None = None,
    ) -> Attended:
        """The mechanism's answer to the rows of a call on a reduced state; without one, as from the first slot on.

        Args:
            counted: the tokens whose queries have a part in what is kept, such as those that have not left; None: all.

        Raises:
            UnsupportedError: training, marks, or padding where the policy has no rows of unequal length.
            ShapeError: a state without a policy, of another one, or of this one under other options.
        """
        name = registered_name(type(self))
        if self.training:
            raise UnsupportedError(
                f"cache {name} is for evaluation; call eval(), or take it off with reduce_cache(None)"
            )
        if marks is not None:
            raise UnsupportedError(f"cache {name} chooses slots without regard to marks; leave them out")
        if not self.pads and key_mask is not None and not bool(key_mask.all()):
            raise UnsupportedError(f"cache {name} has no rows of unequal length; run them one by one")
        own = self.initial_state(attention, q.shape[0], device=k.device, dtype=k.dtype)
        past = own if state is None else state
        self._check_state(past, own)
        assert isinstance(past, States)
        answer = self.rows(attention, Rows(q, k, v, key_mask, bias), past, counted)
        if answer.state is not None:
            answer.state.set_tag(self.spec_tag)
        return answer._replace(state=None if state is None else answer.state)

    def _check_state(self, past: State, own: States) -> None:
        """Refuse a state that no policy of these options made; `own` is an empty one.

        Raises:
            ShapeError: it is.
        """
        name, tag, got = registered_name(type(self)), past.spec_tag, ""
        if type(past) is not type(own):
            got = kind_of(past)
        elif tag is not None and tag != self.spec_tag:
            got = f"that of {tag}, must be of {self.spec_tag}"
        elif (past.tensors().keys() ^ own.tensors().keys()) - {"slots.key_mask"}:
            got = f"one of {sorted(past.tensors())}"
        if got:
            raise ShapeError(f"cache {name} goes on from a state of its own, got {got}; begin anew")

    @abstractmethod
    def rows(self, attention: Attention, rows: Rows, state: States, counted: Tensor | None) -> Attended:
        """The values of every row of a call, and the state behind the last one."""


class Eviction(Cache):
    """Template: policies that drop whole slots, for each batch row and head of keys its own.

    After every row, while more than `budget` slots are kept, the one of the lowest worth goes; of equal ones the
    earlier. Padding is never kept beside real slots that would fit; a padded query weighs nothing, nor does that of a
    token which left before the layer. Keys stay where they were: rotated ones keep their angle, biases their distance.

    State: budget (d + d_v) numbers for each head of keys, and 4 bytes for each slot: where it is; under policies that
    weigh 4 more.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"budget": 7}, {"budget": 64})
    weighs: ClassVar[bool] = False
    """whether it reads the weights that slots were given"""

    budget: Annotated[int, Ge(1)] = 256
    """slots to keep in each head of keys"""

    def check(self, attention: Attention) -> None:
        only_slots(attention, registered_name(type(self)))
        if self.weighs:
            weighable(attention, registered_name(type(self)))

    def empty(self, slots: Slots) -> CacheState:
        first = next(iter(slots.tensors().values()))
        empty = torch.empty(len(first), self.heads.kv_heads, 0, device=first.device)
        kept = {"slot": empty.int(), **({"weight": empty.float()} if self.weighs else {})}
        return CacheState({"slots": slots, "kept": Slots.empty(**kept)})

    def state_nbytes(self, attention: Attention, batch: int, length: int, dtype: torch.dtype) -> int:
        kept = min(length, self.budget)
        own = batch * self.heads.kv_heads * kept * (8 if self.weighs else 4)
        return own + sum(entry.nbytes(batch, kept, dtype) for entry in attention.layout().values())

    @abstractmethod
    def worth(self, state: CacheState) -> Float[Tensor, "batch kv_heads slots"]:
        """What each kept slot is worth: the lowest goes first. Those of padding are not read."""

    def evict(self, state: CacheState) -> CacheState:
        """The state with `budget` slots of every head, or all of fewer."""
        slot = state.kept.view()["slot"]
        excess = slot.shape[2] - self.budget
        if excess <= 0:
            return state
        worth = self.worth(state).double().masked_fill(slot < 0, float("-inf"))
        picked = survivors(worth, excess)
        kept = pick(state.kept, picked)
        return CacheState({"slots": pick(state.slots, picked, kept.view()["slot"][:, 0] >= 0), "kept": kept})

    def rows(self, attention: Attention, rows: Rows, state: States, counted: Tensor | None) -> Attended:
        assert isinstance(state, CacheState)
        parts, first, keys = list[Tensor](), 0, rows.k.shape[2]
        past = state.length
        while first < keys or not parts:
            stop = min(keys, first + max(self.budget + 1 - state.kept.kept, 1))  # no eviction before the last of them
            part = rows.cut(first, stop, past)
            asked = None if counted is None else counted[:, first:stop]
            seen, state = self.append(attention, part, state, weigh=self.weighs, counted=asked)
            state, first = self.evict(state), stop
            parts.append(seen.values)
        return Attended(parts[0] if len(parts) == 1 else torch.cat(parts, 2), state)

    def append(
        self,
        attention: Attention,
        rows: Rows,
        state: CacheState,
        *,
        weigh: bool,
        counted: Tensor | None = None,
    ) -> tuple[Seen, CacheState]:
        """What rows saw between which nothing is dropped, weighed if asked, and the state with them."""
        k, first = rows.k, state.length
        slot = state.kept.view()["slot"]
        seen = together(attention, rows, state.slots, slot, weigh=weigh, counted=counted)
        at = torch.arange(first, first + k.shape[2], dtype=torch.int32, device=k.device).expand(k.shape[:3])
        new = {"slot": at if rows.key_mask is None else at.masked_fill(~rows.key_mask[:, None], -1)}
        if self.weighs:
            new["weight"] = torch.zeros(at.shape, dtype=torch.float32, device=k.device)
        kept = state.kept.append(**new)
        if self.weighs and seen.weights is not None:
            view = kept.view()
            kept = kept.with_tensors({**view, "weight": view["weight"] + seen.weights})
        return seen, CacheState({"slots": seen.slots, "kept": kept})


class Recent(Eviction):
    """Template: evictions that keep the newest slots, whatever these are worth."""

    recent: Annotated[int, Ge(1)] | None = None
    """newest slots that always stay; None: half of the budget, rounded up"""

    def check_options(self) -> None:
        if self.recent is not None and self.budget <= self.recent:
            name = registered_name(type(self))
            raise ConfigError(
                f"cache {name}: budget must be above recent={self.recent}, got {self.budget}; a window of "
                f"the newest is streaming(budget={self.budget}, sinks=0)"
            )

    def staying(self, state: CacheState) -> Bool[Tensor, "batch kv_heads slots"]:
        """Which of the kept slots are the newest."""
        recent = (self.budget + 1) // 2 if self.recent is None else self.recent
        return newest(state.kept.view()["slot"], recent)


def weighable(attention: Attention, name: str) -> None:
    """Refuse a mechanism whose weights cannot be read from its values.

    Raises:
        UnsupportedError: its output is not affine in the values, or weights may be negative.
    """
    info = attention.info
    if not (info.affine_in_value and info.nonnegative) or "v" not in attention.layout():
        raise UnsupportedError(
            f"cache {name} adds up weights, and those of {info.title} are none to add: its output is not affine in the "
            "values, or they may be negative"
        )


def survivors(worth: Float[Tensor, "batch heads slots"], excess: int) -> Int[Tensor, "batch heads kept"]:
    """The slots that stay, ascending, when the `excess` ones of the lowest worth go; of equal ones the earlier go."""
    if excess > 1:
        return torch.sort(worth, dim=-1, stable=True).indices[..., excess:].sort(-1).values
    gone = worth.argmin(-1, keepdim=True)  # the first of equal ones
    rest = torch.arange(worth.shape[-1] - 1, device=worth.device)
    return rest + (rest >= gone)


def newest(slot: Int[Tensor, "batch heads slots"], count: int) -> Bool[Tensor, "batch heads slots"]:
    """Which of the kept slots are the last `count` real ones."""
    order = (slot >= 0).cumsum(-1)
    return order > order[..., -1:] - count
