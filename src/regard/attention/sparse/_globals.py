"""The template of patterns with global tokens: every query sees them, and they see every key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.sparse._base import EXPLICIT_QUERIES, PatternSoftmax, append_slots, at_keys, drop_slots
from regard.core.attention import Attended, Call, registered_name
from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError
from regard.core.precision import accumulation_dtype
from regard.core.state import Entry, State, per_slot, slot_positions
from regard.engines.tiles import Dropout, gathered_attention, masked_attention, tiled_attention
from regard.engines.tiles.gathered import columns, gather_tokens, merged, pair_logits, replace_tokens, within


class Tokens(NamedTuple):
    """The global tokens of every row of a batch, as many columns as the row with the most needs."""

    at: Int[Tensor, "batch globals"]
    """where they stand among the keys; no index twice in a row"""
    real: Bool[Tensor, "batch globals"]
    """False: no global token, only filling"""


@dataclass(frozen=True)
class View:
    """The slots of a call's queries and keys, the hidden keys, the marked ones, and the weights that it drops."""

    batch: int
    queries: Int[Tensor, " queries"]
    keys: Int[Tensor, " keys"]
    key_mask: Bool[Tensor, "batch keys"] | None = None
    marks: Int[Tensor, "batch keys"] | Bool[Tensor, "batch keys"] | None = None
    """None: no token is marked, and the keys are the slots 0, 1, ..."""
    dropout: Dropout | None = None

    def factors(
        self, i: Int[Tensor, "#batch queries"], j: Int[Tensor, "#batch keys"], *, like: Tensor
    ) -> Float[Tensor, "batch heads queries keys"] | None:
        """As `Dropout.factors`; None: no weight is dropped."""
        return None if self.dropout is None else self.dropout.factors(i, j, like=like)


class Globals(PatternSoftmax):
    """Template: softmax over a local pattern and over global tokens, which are different ones in every batch row.

    One softmax in two parts that share no key: the tiles of the pattern, with global keys hidden, and the few global
    keys gathered. Then the rows of the global tokens, where they see everything, are overwritten. A mechanism writes
    `pairs` and `allowed`, global tokens apart, and says in `leading`, `symmetric` and `marked` which tokens are global.
    Cost: that of the pattern and O(length G dim) time, O(length (dim + G)) memory for G global tokens.
    """

    @property
    def leading(self) -> int:
        """How many of the first tokens are global without a mark."""
        return 0

    @property
    def symmetric(self) -> bool:
        """Whether global tokens see every key (causal: every earlier one); if not, they see what all see."""
        return True

    @staticmethod
    def marked(marks: Tensor) -> Bool[Tensor, "batch keys"]:
        """The marks that make a token global, as a mask."""
        return marks != 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """In parts; a few queries on a state by their mask."""
        if call.bias is not None and (call.marks is not None or call.state is not None):
            self._require_columns(call.bias, q.shape[2], k.shape[2], call.state)
        k, v, call, keys = self._remember(k, v, call)
        queries = torch.arange(call.query_start, call.query_start + q.shape[2], device=q.device)
        view = View(q.shape[0], queries, keys, call.key_mask, call.marks, self.draw_dropout())
        by_mask = call.state is not None and q.shape[2] <= EXPLICIT_QUERIES
        values = (self._by_mask if by_mask else self._in_parts)(q, k, v, view, call.bias)
        return Attended(values, call.state)

    def _in_parts(self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None) -> Tensor:
        # Parts are merged and overwritten before they are rounded to 16 bits.
        q, k, v = (x.to(accumulation_dtype(x.dtype)) for x in (q, k, v))
        seen = self.tokens(view)
        local = self._local(q, k, v, view, bias)
        if not seen.at.shape[1]:
            return local[0]
        of_columns = bias if bias is None or bias.table is None else replace(bias, table=columns(bias.table, seen.at))
        allowed, logits = self.column_terms(q, seen, view, of_columns)
        keys, content = gather_tokens(k, seen.at), gather_tokens(v, seen.at)
        factors = view.factors(view.queries[None], view.keys[seen.at], like=q)
        part = masked_attention(q, keys, content, allowed, scale=self.factor, bias=logits, factors=factors)
        values = merged(local, part)
        return self._with_rows(values, q, k, v, view, bias) if self.symmetric else values

    def _with_rows(
        self, values: Tensor, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None
    ) -> Float[Tensor, "batch heads queries value"]:
        """The values with those of the global tokens, which see everything, in their rows."""
        first = view.keys.shape[0] - view.queries.shape[0]
        asking = self.tokens(view, first)
        rows = asking.at - first
        if not rows.shape[1]:
            return values
        if bias is not None:
            parts = {name: x for name in ("query", "table") if (x := getattr(bias, name)) is not None}
            bias = replace(bias, **{name: gather_tokens(x, rows) for name, x in parts.items()})
        q = gather_tokens(q, rows)
        allowed, logits = self.row_terms(q, asking, view, bias)
        factors = view.factors(view.keys[asking.at], view.keys[None], like=q)
        part, _ = masked_attention(q, k, v, allowed, scale=self.factor, bias=logits, factors=factors)
        return replace_tokens(values, rows, asking.real, part)

    def _local(
        self, q: Tensor, k: Tensor, v: Tensor, view: View, bias: ScoreBias | None
    ) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
        """The part of the pattern. Global keys have a part of their own, and nothing may be counted twice."""
        keep = view.key_mask
        if view.marks is not None or self.leading:
            others = ~self.global_keys(view)
            keep = others if keep is None else keep & others
        without_holes = view.marks is None
        return tiled_attention(
            q,
            k,
            v,
            self.pattern,
            scale=self.factor,
            query_positions=view.keys.shape[0] - view.queries.shape[0] if without_holes else view.queries,
            key_positions=0 if without_holes else view.keys,
            key_mask=keep,
            bias=self.near(q, bias),
            dropout=view.dropout,
        )

    def near(self, q: Tensor, bias: ScoreBias | None) -> ScoreBias | None:
        """The bias of the part of the pattern: of its distances only."""
        del q
        return bias if bias is None else within(bias, *self.pattern.distances)

    def global_keys(self, view: View) -> Bool[Tensor, "batch keys"]:
        """The global keys as a mask; a hidden one is none."""
        spread = (view.keys < self.leading).expand(view.batch, -1)
        if view.marks is not None:
            spread = spread | self.marked(view.marks)
        return spread if view.key_mask is None else spread & view.key_mask

    def tokens(self, view: View, first: int = 0) -> Tokens:
        """The global tokens among the keys from index `first` on."""
        device = view.keys.device
        if view.marks is None:  # how many there are is known without a look at the data
            keys = view.keys.shape[0]
            end = self.leading if self.leading <= keys else keys  # no `min`, which a compiler keeps
            at = torch.arange(first, end if first <= end else first, device=device)
            at = at.expand(view.batch, -1)
            real = torch.ones_like(at, dtype=torch.bool) if view.key_mask is None else view.key_mask.gather(1, at)
            return Tokens(at, real)
        spread = self.global_keys(view)[:, first:]
        count = spread.sum(1)
        most = int(count.max()) if len(count) else 0
        at = spread.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return Tokens(at + first, torch.arange(most, device=device) < count[:, None])

    def column_terms(
        self, q: Float[Tensor, "batch heads queries dim"], tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 queries globals"], Float[Tensor, "b h queries globals"] | None]:
        """The global tokens that each query sees, as a mask, and the bias of their logits.

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
        """The keys that each global token sees, as a mask, and the bias of their logits.

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
        spread = self.global_keys(view)
        seen = self.pattern.mask(i, j) | spread[:, None, None, :]
        if self.symmetric:
            seen = seen | spread[:, None, len(j) - len(i) :, None]
        if self.heads.causal:
            seen = seen & (j <= i[:, None])
        if view.key_mask is not None:
            seen = seen & view.key_mask[:, None, None, :]
        logits = None if bias is None else bias.logits(i, j)
        factors = view.factors(i[None], j[None], like=q)
        return gathered_attention(q, k, v, seen, scale=self.factor, bias=logits, factors=factors)[0]

    def _remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call, Int[Tensor, " keys"]]:
        """Keys, values and their slots; the call with their mask and marks, and the state for later queries."""
        if call.state is None:
            return k, v, call, torch.arange(k.shape[2], device=k.device)
        marked = torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        marked = marked if call.marks is None else self.marked(call.marks)
        grown = append_slots(call.state, call.key_mask, k=k, v=v, marked=marked)
        kept = grown.view()
        keys = kept["positions"]
        later = drop_slots(grown, self._alive(keys, grown.length) | kept["marked"].any(0))
        bias = at_keys(call.bias, keys, grown.kept)
        call = call._replace(key_mask=kept.get("key_mask"), marks=kept["marked"], bias=bias, state=later)
        return kept["k"], kept["v"], call, keys

    def _alive(self, keys: Int[Tensor, " keys"], length: int) -> Bool[Tensor, " keys"]:
        """The unmarked keys that a later query may see; a global token that is yet to come may see all."""
        if self.symmetric:
            return torch.ones_like(keys, dtype=torch.bool)
        return self.pattern.alive(keys, length) | (keys < self.leading)

    def state_layout(self) -> Mapping[str, Entry]:
        """Keys and values, which of them are marked, and which slots they are."""
        return {**super().state_layout(), "marked": per_slot(dtype=torch.bool), "positions": slot_positions()}

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """Every distance where there are global tokens or, on a state, may be; else those of the pattern."""
        if self.leading or state is not None:
            return super().bias_distances(queries, keys, state)
        return self.outermost_distances(queries, keys, state)

    def _require_columns(self, bias: ScoreBias, queries: int, keys: int, state: State | None) -> None:
        low, high = super().bias_distances(queries, keys, state)
        if bias.by_distance and (bias.high < high or bias.high - bias.distances >= low):
            raise ShapeError(
                f"{registered_name(type(self))}: marked tokens are seen at the distances {low} to {high}, the bias has "
                f"{bias.high - bias.distances + 1} to {bias.high}; give it every distance of the call"
            )

    def defined_pairs(
        self, i: Int[Tensor, "queries 1"], j: Int[Tensor, "1 keys"], call: Call
    ) -> Bool[Tensor, "... queries keys"]:
        """The pairs of the definition and those of global tokens; a hidden one is not global."""
        spread = j < self.leading if call.marks is None else (j < self.leading) | (call.marks != 0)
        spread = spread if call.key_mask is None else spread & call.key_mask
        seen = self.allowed(i, j) | spread[:, None, None, :]
        return seen | spread[:, None, j.shape[1] - i.shape[0] :, None] if self.symmetric else seen
