"""The root of the sparse templates, and the template of patterns: softmax over the pairs of one."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.attention import Attended, Attention, Call
from regard.core.bias import ScoreBias
from regard.core.options import weight
from regard.core.state import Entry, Slots, State, slot_positions
from regard.engines.kernels import kernel
from regard.engines.tiles import Dropout, explicit, gathered_attention, tiled_attention
from regard.patterns import FAR, Pattern, causal

EXPLICIT_QUERIES = 16
"""up to so many queries on a state see it through an explicit mask"""
SEARCHED_PAIRS, SEARCHED_DISTANCES = 1 << 22, 1024
"""pairs, and distances at either end, that are looked at to find the outermost distances that a bias needs"""


class PatternSoftmax(Attention):
    """Root of `Sparse` and `Globals`: a pattern, by which pairs are found, and its definition.

    A mechanism writes `pairs`, the pattern, and `allowed`, the definition that tests compare it with, both of them
    causality apart. It draws weights in `draw_weights`, since the pattern may be made of them.
    """

    scale: float | None = None
    """of the logits; None: 1/sqrt(key_dim)"""

    pattern: Pattern = weight()
    """which pairs attend, causality included"""
    factor: float = weight()
    """what the inner products are multiplied by"""

    def setup(self) -> None:
        """Draw the weights, and make the pattern."""
        self.factor = self.heads.key_dim**-0.5 if self.scale is None else self.scale
        self.draw_weights()
        self.make_pattern()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "pattern"}  # it may hold any function

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.make_pattern()

    def draw_weights(self) -> None:
        """Draw the weights, if there are any."""

    def make_pattern(self) -> None:
        """Set the pattern from `pairs`, again where what these are made of has changed."""
        self.pattern = causal & self.pairs() if self.heads.causal else self.pairs()

    def draw_dropout(self) -> Dropout | None:
        """The weights that a call drops, drawn once for all of its parts; None: it drops none."""
        return Dropout.drawn(self.heads.dropout) if self.training and self.heads.dropout else None

    @abstractmethod
    def pairs(self) -> Pattern:
        """The pairs that attend, causality apart; for all heads or for each."""

    @abstractmethod
    def allowed(self, i: Int[Tensor, "queries 1"], j: Int[Tensor, "1 keys"]) -> Bool[Tensor, "... queries keys"]:
        """The definition: whether the query at slot i may see the key at slot j, causality apart.

        Of the same shape for all heads, or (heads, queries, keys).
        """

    def outermost_distances(self, queries: int, keys: int, state: State | None) -> tuple[int, int]:
        """The lowest and highest distance of a call at which the pattern holds, or near it where it is far inside."""
        low, high = super().bias_distances(queries, keys, state)
        low = max(low, self.pattern.distances[0])
        high = max(min(high, self.pattern.distances[1]), low)
        if torch.compiler.is_compiling():
            return low, high
        total = keys + (0 if state is None else state.length)
        i = torch.arange(total - queries, total) if self.heads.causal else torch.arange(queries)
        tries = min(max(SEARCHED_PAIRS // max(queries, 1), 1), SEARCHED_DISTANCES)

        def met(distance: int) -> bool:
            at = i[(i >= distance) & (i - distance < total)][:, None]
            return bool(self.pattern.holds(at, at - distance).any())

        end = min(high, low + tries)
        low = next(filter(met, range(low, end)), end)
        end = max(low, high - tries)
        return low, next(filter(met, range(high, end, -1)), end)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit, the softmax of each row over the pairs of the definition."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k)
        i = torch.arange(call.query_start, call.query_start + q.shape[2], device=q.device)
        j = torch.arange(k.shape[2], device=q.device)
        if call.bias is not None:
            logits = logits + call.bias.logits(i, j).to(q.dtype)
        return masked_average(logits, self.defined_pairs(i[:, None], j[None], call) & call.visible(q, k), v)

    def defined_pairs(
        self, i: Int[Tensor, "queries 1"], j: Int[Tensor, "1 keys"], call: Call
    ) -> Bool[Tensor, "... queries keys"]:
        """The pairs of a call by the definition, causality and the key mask apart."""
        del call
        return self.allowed(i, j)


class Sparse(PatternSoftmax):
    """Template: o_i = sum_j softmax_j(scale q_i . k_j + bias) v_j over the keys j that a pattern lets i see.

    A mechanism writes `pairs` and `allowed`. Blocks without pairs are never computed; the state keeps exactly the keys
    that a later query may see.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Over the tiles of the pattern; a few queries on a state over what it keeps."""
        k, v, call, key_positions = self._remember(k, v, call)
        dropout = self.draw_dropout()
        if call.state is None or q.shape[2] > EXPLICIT_QUERIES:
            values, lse = self._tiles(q, k, v, call, key_positions, dropout)
        else:
            i = torch.arange(call.query_start, call.query_start + q.shape[2], device=q.device)
            j = explicit(key_positions, k.shape[2], k.device)
            seen = self.pattern.mask(i, j)
            if call.key_mask is not None:
                seen = seen & call.key_mask[:, None, None, :]
            bias = None if call.bias is None else call.bias.logits(i, j)
            factors = None if dropout is None else dropout.factors(i[None], j[None], like=q)
            values, lse = gathered_attention(q, k, v, seen, scale=self.factor, bias=bias, factors=factors)
        return Attended(values, call.state, lse=lse if call.lse else None)

    def _tiles(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, key_positions: Tensor | int, dropout: Dropout | None
    ) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
        """(values, lse) by the tiles of the pattern, or by the kernel of a device."""
        engine = kernel("pattern", q.device.type, q=q, bias=call.bias, dropout=dropout) or tiled_attention
        return engine(
            q,
            k,
            v,
            self.pattern,
            scale=self.factor,
            query_positions=call.query_start,
            key_positions=key_positions,
            key_mask=call.key_mask,
            bias=call.bias,
            dropout=dropout,
        )

    def _remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call, Tensor | int]:
        """Keys, values and their slots for these queries; the call with their mask, and the state for later ones."""
        if call.state is None:
            return k, v, call, 0
        grown = append_slots(call.state, call.key_mask, k=k, v=v)
        kept = grown.view()
        if self._scattered:
            key_positions = kept["positions"]
            later = drop_slots(grown, self.pattern.alive(key_positions, grown.length))
        else:
            key_positions = grown.length - grown.kept
            farthest = max(self.pattern.distances[1], 0) if self.heads.causal else FAR
            later = drop_first(grown, max(grown.kept - farthest, 0))
        bias = at_keys(call.bias, key_positions, grown.kept)
        call = call._replace(key_mask=kept.get("key_mask"), bias=bias, state=later)
        return kept["k"], kept["v"], call, key_positions

    @property
    def _scattered(self) -> bool:
        """Whether the slots that stay may have holes. By distance alone, what one query sees the next may see too."""
        return self.heads.causal and self.pattern.anchored

    def state_layout(self) -> Mapping[str, Entry]:
        """Keys and values, and which slots these are where they may have holes."""
        positions = {"positions": slot_positions()} if self._scattered else {}
        return {**super().state_layout(), **positions}

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """The outermost distances of the call at which the pattern holds, or near them."""
        return self.outermost_distances(queries, keys, state)


def append_slots(state: State, key_mask: Tensor | None, **new: Tensor) -> Slots:
    """The state with the keys of a call, and which slots these are where it keeps them."""
    assert isinstance(state, Slots)
    k = new["k"]
    if "positions" in state.tape.data:
        new["positions"] = torch.arange(state.length, state.length + k.shape[2], device=k.device)
    return state.append(key_mask, **new)


def drop_slots(state: Slots, alive: Bool[Tensor, " slots"]) -> Slots:
    """Without the slots that no later query may see."""
    picked = alive.nonzero().flatten()
    if torch.compiler.is_compiling():  # how many they are is not known before the graph runs
        return state.keep(picked)
    gone = state.kept - len(picked)
    if not gone:
        return state
    return drop_first(state, gone) if not len(picked) or int(picked[0]) == gone else state.keep(picked)


def drop_first(state: Slots, count: int) -> Slots:
    """Without the first slots: no copy, unless the tape would then hold mostly what no later query reads."""
    if not count or 4 * (state.kept - count) > state.kept:
        return state.drop(count)
    return state.keep(torch.arange(count, state.kept, device=state.view()["k"].device))


def at_keys(bias: ScoreBias | None, key_positions: Int[Tensor, " keys"] | int, keys: int) -> ScoreBias | None:
    """A bias whose table, which has a column for every slot, has those of the kept keys alone."""
    if bias is None or bias.table is None:
        return bias
    return replace(bias, table=bias.table[..., explicit(key_positions, keys, bias.table.device)])


def masked_average(
    logits: Float[Tensor, "batch heads queries keys"],
    seen: Bool[Tensor, "*#pairs queries keys"],
    v: Float[Tensor, "batch heads keys value"],
) -> Float[Tensor, "batch heads queries value"]:
    """Values weighted by the softmax over the seen keys, 0 without any; for definitions."""
    logits = logits.masked_fill(~seen, float("-inf"))
    empty = logits.isneginf().all(-1, keepdim=True)
    weights = logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    return torch.einsum("bhij,bhjd->bhid", weights, v)
