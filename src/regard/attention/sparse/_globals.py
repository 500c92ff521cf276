"""The template of patterns with global tokens: every query sees them, and they see every key."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.sparse._base import FEW, Sparse, few, masked_average
from regard.bias import ScoreBias
from regard.core import Attended, Attention, registered_name
from regard.engines.tiles import plain
from regard.engines.tiles.gathered import columns, merged, pair_logits, put, take, within
from regard.errors import ConfigError, ShapeError
from regard.info import Heads
from regard.patterns import Pattern
from regard.state import Slots, State, slot_bytes


class Tokens(NamedTuple):
    """The global tokens of every row of a batch, as many columns as the row with the most needs."""

    at: Int[Tensor, "batch globals"]
    """where they stand among the keys; no index twice in a row"""
    real: Bool[Tensor, "batch globals"]
    """False: no global token, only filling"""


@dataclass(frozen=True)
class View:
    """What a call sees: the slots of its queries and keys, which keys are hidden, and which are marked."""

    batch: int
    queries: Int[Tensor, " queries"]
    keys: Int[Tensor, " keys"]
    key_mask: Bool[Tensor, "batch keys"] | None = None
    marks: Int[Tensor, "batch keys"] | Bool[Tensor, "batch keys"] | None = None
    """None: no token is marked, and the keys are the slots 0, 1, ..."""


class Globals(Sparse):
    """Template: softmax over a local pattern and over global tokens, which are different ones in every batch row.

    One softmax in two parts that share no key: the tiles of the pattern, with global keys hidden, and the few global
    keys gathered. Then the rows of the global tokens, where they see everything, are overwritten.
    Cost: that of the pattern and O(length G dim) time, O(length (dim + G)) memory for G global tokens.

    Args:
        heads: what to serve.
        pattern: what the other tokens see besides global ones.
        leading: how many of the first tokens are global without a mark.
        symmetric: whether global tokens see every key (causal: every earlier one); if not, they see what all see.
        scale, impl, options: as `Sparse`.

    Raises:
        ConfigError: a negative `num_global`.
    """

    impls: ClassVar[tuple[str, ...]] = ("auto", "reference", "torch")

    def __init__(
        self,
        heads: Heads,
        pattern: Pattern,
        *,
        leading: int,
        symmetric: bool,
        scale: float | None,
        impl: str,
        **options: object,
    ) -> None:
        super().__init__(heads, pattern, scale=scale, impl=impl, **options)
        if leading < 0:
            raise ConfigError(f"{registered_name(type(self))} needs num_global >= 0, got {leading}")
        self.leading, self.symmetric = leading, symmetric

    @staticmethod
    def marked(marks: Tensor) -> Bool[Tensor, "batch keys"]:
        """Which marks make a token global."""
        return marks != 0

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
        """In parts; a few queries on a state by their mask."""
        if self.impl == "reference":
            return Attended(self.reference(q, k, v, key_mask=key_mask, bias=bias, marks=marks), None, {})
        if bias is not None and (marks is not None or state is not None):
            self._require_columns(bias, q.shape[2], k.shape[2], state)
        first, places = self.first_query(q, k, state), torch.arange(k.shape[2], device=q.device)
        if state is not None:
            assert isinstance(state, Slots)
            k, v, key_mask, marks, places, state = self._recall(state, k, v, key_mask, marks)
            if bias is not None and bias.table is not None:
                bias = replace(bias, table=bias.table[..., places])
        slots = torch.arange(first, first + q.shape[2], device=q.device)
        view = View(q.shape[0], slots, places, key_mask, marks)
        by_mask = state is not None and q.shape[2] <= FEW
        values = (self._by_mask if by_mask else self._in_parts)(q, k, v, view, bias)
        return Attended(values, state, {})

    def _in_parts(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> Tensor:
        # Parts are merged and overwritten before they are rounded to 16 bits.
        q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
        tokens = self.tokens(view)
        local = self._local(q, k, v, view, bias)
        if not tokens.at.shape[1]:
            return local[0]
        aside = bias if bias is None or bias.table is None else replace(bias, table=columns(bias.table, tokens.at))
        allowed, logits = self.column_terms(q, tokens, view, aside)
        part = plain(q, take(k, tokens.at), take(v, tokens.at), allowed, scale=self.factor, bias=logits)
        values = merged(local, part)
        if not self.symmetric:
            return values
        first = view.keys.shape[0] - view.queries.shape[0]
        own = self.tokens(view, first)
        rows = own.at - first
        if not rows.shape[1]:
            return values
        aside = bias
        if bias is not None:
            of_rows = {name: take(x, rows) for name in ("query", "table") if (x := getattr(bias, name)) is not None}
            aside = replace(bias, **of_rows)
        asking = take(q, rows)
        allowed, logits = self.row_terms(asking, own, view, aside)
        return put(values, rows, own.real, plain(asking, k, v, allowed, scale=self.factor, bias=logits)[0])

    def _local(
        self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None
    ) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
        """The part of the pattern. Global keys have a part of their own, and nothing may be counted twice."""
        keep = view.key_mask
        if view.marks is not None or self.leading:
            others = ~self._global(view)
            keep = others if keep is None else keep & others
        whole = view.marks is None  # slots without holes
        return self._engine(
            q,
            k,
            v,
            self.pattern,
            scale=self.factor,
            query_positions=view.keys.shape[0] - view.queries.shape[0] if whole else view.queries,
            key_positions=0 if whole else view.keys,
            key_mask=keep,
            bias=self.near(q, bias),
        )

    def near(self, q: Tensor, bias: ScoreBias | None) -> ScoreBias | None:
        """The bias of the part of the pattern: of its distances only."""
        del q
        return bias if bias is None else within(bias, *self.pattern.distances)

    def _global(self, view: View) -> Bool[Tensor, "batch keys"]:
        """Which keys are global; a hidden one is not."""
        found = (view.keys < self.leading).expand(view.batch, -1)
        if view.marks is not None:
            found = found | self.marked(view.marks)
        return found if view.key_mask is None else found & view.key_mask

    def tokens(self, view: View, first: int = 0) -> Tokens:
        """The global tokens among the keys from index `first` on."""
        device = view.keys.device
        if view.marks is None:  # how many there are is known without a look at the data
            at = torch.arange(first, max(first, min(self.leading, view.keys.shape[0])), device=device)
            at = at.expand(view.batch, -1)
            real = torch.ones_like(at, dtype=torch.bool) if view.key_mask is None else view.key_mask.gather(1, at)
            return Tokens(at, real)
        found = self._global(view)[:, first:]
        count = found.sum(1)
        most = int(count.max()) if len(count) else 0
        at = found.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return Tokens(at + first, torch.arange(most, device=device) < count[:, None])

    def column_terms(
        self, q: Float[Tensor, "batch heads queries dim"], tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 queries globals"], Float[Tensor, "b h queries globals"] | None]:
        """Which queries see which global tokens, and what is added to their logits.

        Args:
            q: the queries.
            tokens: the global tokens.
            view: the call.
            bias: its `table`, if any, has one column per global token.
        """
        slots = view.keys[tokens.at]
        allowed = tokens.real[:, None, None, :].expand(-1, -1, q.shape[2], -1)
        if self.heads.causal:
            allowed = allowed & (slots[:, None, None, :] <= view.queries[:, None])
        return allowed, pair_logits(bias, view.queries.expand(view.batch, -1), slots)

    def row_terms(
        self, q: Float[Tensor, "batch heads globals dim"], tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 globals keys"], Float[Tensor, "b h globals keys"] | None]:
        """What the global tokens see, and what is added to their logits.

        Args:
            q: the queries of the global tokens.
            tokens: the global tokens.
            view: the call.
            bias: its `query` and `table`, if any, have one row per global token.
        """
        slots = view.keys[tokens.at]
        allowed = tokens.real[:, None, :, None].expand(-1, -1, -1, view.keys.shape[0])
        if self.heads.causal:
            allowed = allowed & (view.keys <= slots[:, None, :, None])
        if view.key_mask is not None:
            allowed = allowed & view.key_mask[:, None, None, :]
        return allowed, pair_logits(bias, slots, view.keys.expand(view.batch, -1))

    def _by_mask(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> Tensor:
        """A few queries."""
        i, j = view.queries, view.keys
        spread = self._global(view)
        seen = self.pattern.mask(i, j) | spread[:, None, None, :]
        if self.symmetric:
            seen = seen | spread[:, None, len(j) - len(i) :, None]
        if self.heads.causal:
            seen = seen & (j <= i[:, None])
        if view.key_mask is not None:
            seen = seen & view.key_mask[:, None, None, :]
        return few(q, k, v, seen, scale=self.factor, bias=None if bias is None else bias.logits(i, j))

    def _recall(
        self, state: Slots, k: Tensor, v: Tensor, key_mask: Tensor | None, marks: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Slots]:
        """Keys, values, mask, marks and slots of every key that is kept, and the state for later queries."""
        count, length = k.shape[2], state.length + k.shape[2]
        grown = state
        if count:
            new = torch.arange(state.length, length, device=k.device)
            marked = torch.zeros(k.shape[0], count, dtype=torch.bool, device=k.device)
            marked = marked if marks is None else self.marked(marks)
            grown = state.append(key_mask, k=k, v=v, marked=marked, positions=new)
        seen = grown.view()
        kept = seen["k"], seen["v"], seen.get("key_mask"), seen["marked"], seen["positions"]
        alive = self._alive(seen["positions"], length) | seen["marked"].any(0)
        return *kept, grown if bool(alive.all()) else grown.keep(alive.nonzero().flatten())

    def _alive(self, places: Tensor, length: int) -> Bool[Tensor, " keys"]:
        """Which unmarked keys a later query may see; a global token that is yet to come may see all."""
        if self.symmetric:
            return torch.ones_like(places, dtype=torch.bool)
        return self.pattern.alive(places, length) | (places < self.leading)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        shape = (batch, self.heads.kv_heads, 0)
        return Slots.empty(
            k=torch.empty(*shape, self.heads.key_dim, device=device, dtype=dtype),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
            marked=torch.empty(batch, 0, device=device, dtype=torch.bool),
            positions=torch.empty(0, device=device, dtype=torch.long),
        )

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Slots that a later query may see x kv_heads x (key + value), a mark each, and 8 bytes each for its place."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        kept = int(self._alive(torch.arange(length), length).sum())
        elements = self.heads.kv_heads * (self.heads.key_dim + self.heads.value_width)
        return slot_bytes(elements, kept, dtype, batch) + (batch + 8) * kept

    def reach(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """Every distance where there are global tokens or, on a state, may be; else those of the pattern."""
        if self.leading or state is not None:
            return Attention.reach(self, queries, keys, state)
        return super().reach(queries, keys, state)

    def _require_columns(self, bias: ScoreBias, queries: int, keys: int, state: State | None) -> None:
        low, high = Attention.reach(self, queries, keys, state)
        if bias.by_distance and (bias.high < high or bias.high - bias.distances >= low):
            raise ShapeError(
                f"{registered_name(type(self))}: marked tokens are seen at the distances {low} to {high}, the bias has "
                f"{bias.high - bias.distances + 1} to {bias.high}; give it every distance of the call"
            )

    @abstractmethod
    def allowed(self, i: Int[Tensor, "queries 1"], j: Int[Tensor, "1 keys"]) -> Bool[Tensor, "*heads queries keys"]:
        """The definition: whether the query at slot i may see the key at slot j, global tokens and causality apart."""

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
        """Every logit, the softmax of each row over the pairs of the definition and those of global tokens."""
        (queries, keys), first = (q.shape[2], k.shape[2]), self.first_query(q, k)
        k, v = k.repeat_interleave(self.heads.group, 1), v.repeat_interleave(self.heads.group, 1)
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k)
        i, j = torch.arange(first, first + queries, device=q.device), torch.arange(keys, device=q.device)
        if bias is not None:
            logits = logits + bias.logits(i, j).to(q.dtype)
        spread = (j < self.leading)[None] if marks is None else (j < self.leading) | (marks != 0)
        spread = spread if key_mask is None else spread & key_mask
        seen = self.allowed(i[:, None], j[None]) | spread[:, None, None, :]
        if self.symmetric:
            seen = seen | spread[:, None, keys - queries :, None]
        if self.heads.causal:
            seen = seen & (j[None] <= i[:, None])
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        return masked_average(logits, seen, v)
