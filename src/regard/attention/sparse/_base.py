"""The sparse template: softmax over the pairs of a pattern."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention, registered_name
from regard.engines.tiles import WHOLE, explicit, plain, tiled
from regard.errors import ConfigError, UnsupportedError, nearest
from regard.info import Heads, Info
from regard.patterns import FAR, Pattern, causal
from regard.state import Slots, State, slot_bytes

FEW = 16
"""Up to this many queries on a state see it through an explicit mask."""
MANY = 1024
"""A single query gathers what it sees out of more keys than this."""
TRIES = 1 << 22
"""Pairs that are looked at to find the outermost distances that a bias needs."""


class Sparse(Attention):
    """Template: o_i = sum_j softmax_j(scale q_i . k_j + bias) v_j over the keys j that a pattern lets i see.

    A mechanism hands its pattern to `__init__` and writes `allowed`, the definition that tests compare it with. Blocks
    without pairs are never computed; the state keeps exactly the keys that a later query may see.

    Args:
        heads: what to serve.
        pattern: which pairs attend; `causal` is added where `heads` asks for it.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.
        options: the options of the mechanism that decide its facts.

    Raises:
        ConfigError: an unknown `impl`.
        UnsupportedError: an `impl` that this mechanism does not have.
    """

    impls: ClassVar[tuple[str, ...]] = ("auto", "reference", "torch", "flex")

    def __init__(self, heads: Heads, pattern: Pattern, *, scale: float | None, impl: str, **options: object) -> None:
        super().__init__(heads, scale=scale, impl=impl, **options)
        name = registered_name(type(self))
        if impl not in self.impls and impl in ("flex", "triton"):
            raise UnsupportedError(f"{name} has no impl={impl!r}; it has {', '.join(self.impls)}")
        if impl not in self.impls:
            raise ConfigError(f"{name} has no impl={impl!r}; {nearest(impl, self.impls)}")
        if pattern.heads not in (None, heads.count):
            raise ConfigError(
                f"{name} has {heads.count} heads and patterns for {pattern.heads}; give each head one, or one to all"
            )
        self.pattern = causal & pattern if heads.causal else pattern
        self.scale, self.impl = scale, impl
        self.factor = heads.key_dim**-0.5 if scale is None else scale

    @classmethod
    def facts(cls, **options: object) -> Info:
        """The definition makes every weight and keeps no state."""
        if options.get("impl") != "reference":
            return cls.info
        supports = replace(cls.info.supports, state=False)
        return replace(cls.info, supports=supports, state="none", time=2, memory=2)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
    ) -> Attended:
        """Over the tiles of the pattern; a few queries on a state over what it keeps."""
        del marks
        if self.impl == "reference":
            return Attended(self.reference(q, k, v, key_mask=key_mask, bias=bias), None, {})
        queries, first = q.shape[2], self.first_query(q, k, state)
        places: Tensor | int = 0
        if state is not None:
            assert isinstance(state, Slots)
            k, v, key_mask, places, state = self._remember(state, k, v, key_mask)
            if bias is not None and bias.table is not None:
                bias = replace(bias, table=bias.table[..., explicit(places, k.shape[2], k.device)])
            if queries <= FEW:
                return Attended(self._few(q, k, v, key_mask, bias, first, places), state, {})
        values, _ = self._engine(
            q,
            k,
            v,
            self.pattern,
            scale=self.factor,
            query_positions=first,
            key_positions=places,
            key_mask=key_mask,
            bias=bias,
        )
        return Attended(values, state, {})

    @property
    def _engine(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """What computes a pattern: `auto` takes our tiles on every device."""
        if self.impl == "flex":
            from regard.engines.gpu.flex import flexed

            return flexed
        return partial(tiled, whole=0 if self.impl == "torch" else WHOLE)

    def first_query(self, q: Tensor, k: Tensor, state: State | None = None) -> int:
        """The slot of the first query: causal queries are the last slots, others count from 0 as the keys do."""
        return (0 if state is None else state.length) + k.shape[2] - q.shape[2] if self.heads.causal else 0

    def _few(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        first: int,
        places: Tensor | int,
    ) -> Tensor:
        i = torch.arange(first, first + q.shape[2], device=q.device)
        j = explicit(places, k.shape[2], k.device)
        seen = self.pattern.mask(i, j)
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        return few(q, k, v, seen, scale=self.factor, bias=None if bias is None else bias.logits(i, j))

    def _remember(
        self, state: Slots, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | int, Slots]:
        """Keys, values, mask and slots that these queries may see, and the state for later ones."""
        count, length = k.shape[2], state.length + k.shape[2]
        if count == 0:
            old = state.view()
            places = old["positions"] if self._scattered else state.length - state.kept
            return old["k"], old["v"], old.get("key_mask"), places, state
        if self._scattered:
            new = torch.arange(state.length, length, device=k.device)
            grown = state.append(key_mask, k=k, v=v, positions=new)
            seen = grown.view()
            return seen["k"], seen["v"], seen.get("key_mask"), seen["positions"], self._pruned(grown)
        keep = min(length, self._horizon)
        first = state.length - state.kept
        if keep > count:
            grown = state.append(key_mask, k=k, v=v)
            seen = grown.view()
            return seen["k"], seen["v"], seen.get("key_mask"), first, grown.drop(grown.kept - keep)
        # Only new slots stay: appending all of them would hold memory that no later query reads.
        old = state.view()
        mask = key_mask
        if key_mask is not None or "key_mask" in old:
            parts = (old.get("key_mask"), state.kept), (key_mask, count)
            mask = torch.cat([k.new_ones(len(k), n, dtype=torch.bool) if x is None else x for x, n in parts], 1)
        late = replace(state.drop(state.kept), length=length - keep).append(
            None if key_mask is None else key_mask[:, count - keep :],
            k=k[:, :, count - keep :],
            v=v[:, :, count - keep :],
        )
        return torch.cat([old["k"], k], 2), torch.cat([old["v"], v], 2), mask, first, late

    def _pruned(self, state: Slots) -> Slots:
        """Without the slots that no later query may see."""
        places = state.view()["positions"]
        alive = self.pattern.alive(places, state.length)
        if bool(alive.all()):
            return state
        dead = int((~alive).cumprod(0).sum())
        if bool(alive[dead:].all()) and 4 * (state.kept - dead) > state.kept:
            return state.drop(dead)
        return state.keep(alive.nonzero().flatten())

    @property
    def _horizon(self) -> int:
        """How many of the last slots a later query may see, where the pattern looks at distances alone."""
        return max(self.pattern.distances[1], 0) if self.heads.causal else FAR

    @property
    def _scattered(self) -> bool:
        """Whether the slots that stay may have holes. By distance alone, what one query sees the next may see too."""
        return self.heads.causal and self.pattern.anchored

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        shape = (batch, self.heads.kv_heads, 0)
        like = {
            "k": torch.empty(*shape, self.heads.key_dim, device=device, dtype=dtype),
            "v": torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
        }
        if self._scattered:
            like["positions"] = torch.empty(0, device=device, dtype=torch.long)
        return Slots.empty(**like)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Slots that a later query may see x kv_heads x (key + value), and 8 bytes each where slots may have holes."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        elements = self.heads.kv_heads * (self.heads.key_dim + self.heads.value_width)
        if self._scattered:
            kept = int(self.pattern.alive(torch.arange(length), length).sum())
            return slot_bytes(elements, kept, dtype, batch) + 8 * kept
        return slot_bytes(elements, min(length, self._horizon), dtype, batch)

    def reach(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """The outermost distances of the call at which the pattern holds, or near them where those are far inside."""
        low, high = super().reach(queries, keys, state)
        nearest_key, farthest_key = self.pattern.distances
        low = max(low, nearest_key)
        high = max(min(high, farthest_key), low)
        if torch.compiler.is_compiling():
            return low, high
        total = keys + (0 if state is None else state.length)
        i = torch.arange(total - queries, total) if self.heads.causal else torch.arange(queries)
        tries = min(max(TRIES // max(queries, 1), 1), 1024)
        low = next((d for d in range(low, min(high, low + tries)) if self._meets(i, d, total)), min(high, low + tries))
        high = next(
            (d for d in range(high, max(low, high - tries), -1) if self._meets(i, d, total)), max(low, high - tries)
        )
        return low, high

    def _meets(self, i: Tensor, distance: int, total: int) -> bool:
        """Whether one of the queries `i` sees the key at that distance, out of `total` slots."""
        i = i[(i >= distance) & (i - distance < total)][:, None]
        return bool(self.pattern.holds(i, i - distance).any())

    @abstractmethod
    def allowed(self, i: Int[Tensor, "queries 1"], j: Int[Tensor, "1 keys"]) -> Bool[Tensor, "... queries keys"]:
        """The definition: whether the query at slot i may see the key at slot j, causality apart.

        Of the same shape for all heads, or (heads, queries, keys).
        """

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Every logit, the softmax of each row over the pairs of the definition."""
        del marks
        (queries, keys), first = (q.shape[2], k.shape[2]), self.first_query(q, k)
        k, v = k.repeat_interleave(self.heads.group, 1), v.repeat_interleave(self.heads.group, 1)
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k)
        i = torch.arange(first, first + queries, device=q.device)
        j = torch.arange(keys, device=q.device)
        if bias is not None:
            logits = logits + bias.logits(i, j).to(q.dtype)
        seen = self.allowed(i[:, None], j[None])
        if self.heads.causal:
            seen = seen & (j[None] <= i[:, None])
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        return masked_average(logits, seen, v)


def few(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    seen: Bool[Tensor, "*#pairs queries keys"],
    *,
    scale: float,
    bias: Float[Tensor, "*#pairs queries keys"] | None,
) -> Float[Tensor, "batch heads queries value"]:
    """Attention of a few queries to the keys that they see; a single one gathers these out of many."""
    if q.shape[2] == 1 and k.shape[2] > MANY and bias is None and not torch.compiler.is_compiling():
        used = seen.flatten(0, -2).any(0).nonzero().flatten()
        if len(used) <= k.shape[2] // 2:
            k, v, seen = k.index_select(2, used), v.index_select(2, used), seen[..., used]
    return plain(q, k, v, seen, scale=scale, bias=bias)[0]


def masked_average(
    logits: Float[Tensor, "batch heads queries keys"],
    seen: Bool[Tensor, "*#pairs queries keys"],
    v: Float[Tensor, "batch heads keys value"],
) -> Float[Tensor, "batch heads queries value"]:
    """Values weighted by the softmax over the seen keys, 0 without any; for references."""
    logits = logits.masked_fill(~seen, float("-inf"))
    empty = logits.isneginf().all(-1, keepdim=True)
    weights = logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    return torch.einsum("bhij,bhjd->bhid", weights, v)
