"""The memory of the Memorizing Transformer: the keys and values of earlier segments, searched."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from regard.core.attention import accumulation_dtype
from regard.core.options import weight
from regard.features.norms import unit
from regard.memory import _lists as lists
from regard.memory._base import Memory, MemoryState, Project, join
from regard.memory._content import masked_softmax

_EPS = 1e-6
"""norms below it count as it"""
_BUFFER = 1 << 22
"""scores that a search holds at a time"""


_LISTED = ({"pairs": 9, "top": 3, "index": "ivf"},) if find_spec("faiss") else ()
"""where there is FAISS"""


@final
class Memorizing(Memory):
    """o_i = g_h V_m + (1 - g_h) V_c: the mechanism's average V_c and, of the memory, the average V_m over the k pairs
    that the query finds, g_h = sigmoid(b_h) for every head.

        V_m = sum_j softmax_j(s_h q_i . k_j / (|q_i| |k_j|)) v_j, j among the `top` largest cosines

    Queries and keys are the layer's own, before rotation, so the memory knows no positions. Each head of keys has the
    last `pairs` real or masked positions, first in, first out; a segment is written once it is over, after its queries
    were asked. No gradient reaches what is kept; the search is exact, and its gradient is that of what it found. A row
    whose memory holds nothing keeps V_c as it is (published: a memory of zeros from the start).

    With `index="ivf"` the search is approximate: keys lie in lists, each by the nearest of as many centres as the root
    of `pairs`, and FAISS compares a query with the lists of the `probes` nearest centres alone; pairs in the others are
    missed, and a query that finds nothing keeps V_c. Centres are drawn from the keys of the row (k-means) once there
    are 8 for each, and again whenever the row has written twice as many, or as many as fill it; before that, the
    search is exact. They are part of the state, so that a run that goes on finds what it would have found. It runs
    on the processor, wherever the keys are.

    With `recent` positions, the last hidden states lead the segment as well, as the published layer has them.

    Cost: O(pairs) a query for the search, in buffers of constant size, and O(top) beside it; of `ivf` about probes /
    sqrt(pairs) of that, and for each call a copy of the keys of one head, which decoding keeps. State: keys (divided by
    their norms) and values of up to `pairs` positions, with their mask once one was given; of `ivf` 4 bytes for each
    key, the centres, and how many real positions a row has written.

    Raises:
        UnsupportedError: `ivf` without FAISS.

    Source: Wu et al. 2022, sections 3.1 and 3.2; normalised queries and keys: Henry et al. 2020; lists: Sivic &
    Zisserman 2003, Jégou et al. 2011.
    """

    searched = True
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"pairs": 7, "top": 3},
        {"pairs": 64, "top": 64, "recent": 4},
        *_LISTED,
    )
    masks: ClassVar[Mapping[str, str]] = {"keys": "key_mask", "hidden": "hidden_mask"}

    pairs: Annotated[int, Ge(1), Le(262_144)] = 8192
    """keys and values to keep, of each head of keys"""
    top: Annotated[int, Ge(1)] = 32
    """k, pairs that a query finds; all, where there are fewer"""
    recent: Annotated[int, Ge(0)] = 0
    """hidden states that lead the segment besides, as in `recent`"""
    gain: Annotated[float, Gt(0)] = 10.0
    """s_h before training; learnt as its logarithm"""
    gate: float = 0.0
    """b_h before training"""
    index: Literal["exact", "ivf"] = "exact"
    """how pairs are searched: exact: every key; ivf: FAISS, in the lists of the nearest centres"""
    probes: Annotated[int, Ge(1)] = 16
    """centres whose lists a query of `ivf` looks into"""
    log_gain: nn.Parameter = weight()
    gates: nn.Parameter = weight()
    """b, (heads,)"""

    def setup(self) -> None:
        self.log_gain = nn.Parameter(torch.full((self.heads.count,), self.gain).log())
        self.gates = nn.Parameter(torch.full((self.heads.count,), float(self.gate)))
        if self.index == "ivf":
            lists.faiss()

    @property
    def compares(self) -> bool:
        return True

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> MemoryState:
        """No pairs yet."""
        heads, place = self.heads, {"device": device, "dtype": dtype}
        content = {
            "keys": torch.zeros(batch, heads.kv_heads, 0, heads.key_dim, **place),
            "values": torch.zeros(batch, heads.kv_heads, 0, heads.value_width, **place),
        }
        if self.recent:
            content["hidden"] = torch.zeros(batch, 0, self.dim, **place)
        if self.index == "ivf":
            kinds = heads.kv_heads, lists.count(self.pairs)
            content["centres"] = torch.zeros(batch, *kinds, heads.key_dim, **place)
            content["lists"] = torch.zeros(batch, heads.kv_heads, 0, 1, device=device, dtype=torch.int32)
            content["written"] = torch.zeros(batch, 1, device=device, dtype=torch.int64)
        return MemoryState(content, spec_tag=self.spec_tag)

    @property
    def leads(self) -> bool:
        """With `recent` positions alone."""
        return self.recent > 0

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        """The last `recent` hidden states."""
        if not self.recent:
            return super().leading(state)
        return state["hidden"].detach(), state.content.get("hidden_mask")

    def read(self, q: Tensor, local: Tensor, state: MemoryState) -> Tensor:
        """The values mixed by the gates; the local ones alone in rows that hold no pair."""
        keys, real = state["keys"].detach(), state.content.get("key_mask")
        if not keys.shape[2]:
            return local
        wide = accumulation_dtype(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            asked = unit(q.to(wide), _EPS)
            found, keep = self.found(asked.detach(), state)
            near, values = (_picked(x.to(wide), found) for x in (keys, state["values"].detach()))
            logits = torch.einsum("bhqd,bhqkd->bhqk", asked, near) * self.log_gain.exp().to(wide)[:, None, None]
            average = torch.einsum("bhqk,bhqkd->bhqd", masked_softmax(logits, keep), values)
            gate = self.gates.to(wide).sigmoid()[:, None, None]
            if real is not None:
                gate = gate * real.any(1)[:, None, None, None]
            if self.index == "ivf" and keep is not None:
                gate = gate * keep.any(-1, keepdim=True)
            return (gate * average + (1 - gate) * local.to(wide)).to(local.dtype)

    def found(self, q: Tensor, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        """The places (batch, heads, queries, k) of what queries of norm 1 find, and which of them are real."""
        keys, real = state["keys"], state.content.get("key_mask")

        def exactly(rows: slice | Tensor) -> tuple[Tensor, Tensor | None]:
            there = None if real is None else real[rows]
            places = self.search(q[rows], keys[rows].detach(), there)
            if there is None:
                return places, None
            return places, there[:, None, None].expand(*places.shape[:3], -1).gather(3, places)

        if self.index == "exact":
            return exactly(slice(None))
        with torch.no_grad():
            known = lists.Lists(state["centres"], state["lists"])
            listed = known.drawn
            if not bool(listed.any()):
                return exactly(slice(None))
            count = min(self.top, keys.shape[2])
            places = lists.found(q, keys, real, known, rows=listed, top=count, probes=self.probes)
            keep = places >= 0
            if not bool(listed.all()):
                few = (~listed).nonzero()[:, 0]
                exact, there = exactly(few)
                places[few], keep[few] = exact, torch.ones_like(exact, dtype=torch.bool) if there is None else there
            return places.clamp_min(0), keep

    def search(self, q: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
        """The places (batch, heads, queries, k) of the k keys with the largest inner products, real ones first.

        Every key is compared; of equal ones, any may be found.
        """
        heads, count = keys.shape[1], min(self.top, keys.shape[2])
        # One row for each head of keys, with the queries of its whole group.
        asked, kept = q.unflatten(1, (heads, -1)).flatten(2, 3).flatten(0, 1), keys.flatten(0, 1)
        rows = max(_BUFFER // max(kept.shape[1] * asked.shape[1], 1), 1)
        step = max(_BUFFER // kept.shape[1], 1)
        hidden = None if real is None else ~real.repeat_interleave(heads, 0)[:, None]
        places: list[Tensor] = []
        with torch.no_grad():
            for first in range(0, max(len(asked), 1), rows):
                own, parts = slice(first, first + rows), list[Tensor]()
                for queries in asked[own].split(step, 1):
                    scores = queries @ kept[own].to(queries.dtype).mT
                    if hidden is not None:
                        scores.masked_fill_(hidden[own], float("-inf"))
                    parts.append(scores.topk(count, -1, sorted=False).indices)
                places.append(torch.cat(parts, 1))
        return torch.cat(places).view(*q.shape[:3], count)

    def write(
        self,
        state: MemoryState,
        x: Tensor,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        project: Project,
        key_mask: Tensor | None = None,
    ) -> tuple[MemoryState, dict[str, Tensor]]:
        """The pairs of the segment behind those that were kept; the oldest leave."""
        del q, project
        k, v = k.detach(), v.detach()
        content = {"keys": unit(k.to(accumulation_dtype(k.dtype)), _EPS).to(k.dtype), "values": v}
        if key_mask is not None:
            content = {name: new.masked_fill(~key_mask[:, None, :, None], 0) for name, new in content.items()}
        content = {name: _newest(state[name], new.to(state[name].dtype), self.pairs) for name, new in content.items()}
        old_mask = state.content.get("key_mask")
        if key_mask is not None or old_mask is not None:
            old = (
                state["keys"].new_ones(len(x), state["keys"].shape[2], dtype=torch.bool)
                if old_mask is None
                else old_mask
            )
            new = old.new_ones(x.shape[:2]) if key_mask is None else key_mask
            content["key_mask"] = _newest(old, new, self.pairs, 1)
        if self.index == "ivf":
            content |= self._listed(state, content, key_mask, x.shape[1])
        if self.recent:
            hidden, mask = join(state["hidden"], state.content.get("hidden_mask"), x.detach(), key_mask)
            content["hidden"] = hidden[:, -self.recent :]
            if mask is not None:
                content["hidden_mask"] = mask[:, -self.recent :]
        return MemoryState(content, state.length + x.shape[1]), {}

    def _listed(
        self, state: MemoryState, content: Mapping[str, Tensor], key_mask: Tensor | None, length: int
    ) -> dict[str, Tensor]:
        """The lists with the newest keys, and with other centres where these are due."""
        with torch.no_grad():
            written, keys = state["written"], content["keys"]
            after = written + (length if key_mask is None else key_mask.sum(1, keepdim=True))
            ages = zip(written[:, 0].tolist(), after[:, 0].tolist(), strict=True)
            new = lists.nearest(keys[:, :, -length:] if length else keys[:, :, :0], state["centres"])
            known = lists.Lists(state["centres"], _newest(state["lists"], new, self.pairs))
            due = [
                row
                for row, (old, now) in enumerate(ages)
                if lists.draws(old, self.pairs) != lists.draws(now, self.pairs)
            ]
            if due:
                known = lists.drawn_anew(known, keys, content.get("key_mask"), due, self.heads.seed)
        return {"centres": known.centres, "lists": known.of, "written": after}


def _newest(old: Tensor, new: Tensor, count: int, axis: int = 2) -> Tensor:
    """The last `count` slots of both, in a tensor of their own size."""
    newest = min(count, new.shape[axis])
    kept = min(count - newest, old.shape[axis])
    return torch.cat([x.narrow(axis, x.shape[axis] - n, n) for x, n in ((old, kept), (new, newest))], axis)


def _picked(x: Tensor, places: Tensor) -> Tensor:
    """(batch, heads, queries, k, dim) of (batch, kv_heads, slots, dim)."""
    batch, heads = places.shape[:2]
    group = heads // x.shape[1]
    rows = torch.arange(batch, device=x.device)[:, None, None, None]
    kinds = torch.arange(heads, device=x.device)[None, :, None, None] // group
    return x[rows, kinds, places]
