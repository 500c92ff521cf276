"""Graph attention's score."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn

from regard import patterns
from regard.attention.dense import Dense, concatenated_pairs, random_weight, reference_softmax
from regard.core.attention import Attended, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, expand_heads, publish, softmax
from regard.engines.edges import average_over_edges
from regard.patterns.edges import Edges


@final
class Graph(Dense):
    """Softmax of the graph attention score: z_ij = LeakyReLU(a^T [q_i || k_j]) = LeakyReLU(a_1 . q_i + a_2 . k_j).

    `query` and `key` are the halves a_1 and a_2 of the paper's a; every query head has its own a_1, every key head its
    own a_2. The paper's W x_i and W x_j are the q_i and k_j of the layer's projections (the paper has one W for q, k
    and v). The neighbourhood of a query is every key that it may see, or those that the edges of a graph name:
    `neighbours=masks.edges(pairs, loops=True)`, where the paper's nodes see themselves too.

    What is lost: LeakyReLU is monotone, so that every query ranks the keys alike ("static attention", Brody et al.
    2022): it cannot look a key up. `additive` can.

    Cost: O((queries + keys) dim + queries keys value) time; memory of one chunk of queries x keys. With neighbours
    O((queries + keys) dim + edges value) time and O(edges value) memory. State: one number and one value per key.

    Example:
        >>> from regard import Heads, weights
        >>> x = torch.eye(4).reshape(1, 1, 4, 4)
        >>> found = weights(Graph(Heads(count=1, key_dim=4)), x, x).argmax(-1)
        >>> found.unique().numel()  # every query equals another key, and all like the same one best
        1

    Raises:
        ConfigError: `neighbours` that are another pattern than edges; `pattern` has every pattern.

    Source: Velickovic et al. 2018, Eq. 3.
    """

    default_info = Info(
        title="Graph attention",
        source="Velickovic et al. 2018, Graph Attention Networks, Eq. 3",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"slope": 0.5},
        {"neighbours": "block_model(30, 2, 7, 7, 2)"},
    )
    reasons: ClassVar[Mapping[str, str]] = {"bias": "its neighbours are a list of edges, and no edge has a distance"}

    slope: Annotated[float, Ge(0), Le(1)] = 0.2
    """of LeakyReLU below 0; 0.2 is the paper's"""
    neighbours: str | patterns.Pattern | None = None
    """which keys a query sees, where that is a list: `masks.edges(...)`, or the text of a `block_model`; None: all"""
    query: nn.Parameter = weight()
    key: nn.Parameter = weight()
    edges: Edges | None = weight()
    """the neighbours, one by one"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Edges name positions, and no position beyond them is looked at."""
        info = cls.default_info
        if options["neighbours"] is None:
            return info
        supports = replace(info.supports, bias=False)
        return replace(info, supports=supports, time=1, sees_content_only=False, anchored=True)

    def check_options(self) -> None:
        _edges(self.neighbours)

    def setup(self) -> None:
        self.edges = _edges(self.neighbours)
        heads, slope, draw = self.heads, self.slope, generator(self.heads.seed, "graph")
        self.query = random_weight(draw, heads.count, heads.key_dim)
        self.key = random_weight(draw, heads.kv_heads, heads.key_dim)
        self.rule = publish(f"graph({slope!r})", Rule(lambda q, k: F.leaky_relu(q + k.mT, slope), softmax))

    @property
    def key_width(self) -> int:
        """One number, a_2 . k."""
        return 1

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """a_1 . q and a_2 . k: the score of a pair is a function of their sum."""
        return q @ self.query[:, :, None].to(q.dtype), k @ self.key[:, :, None].to(k.dtype)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Over every key, or edge by edge."""
        if self.edges is None:
            return super().average(q, k, v, call)
        wide = accumulation_dtype(q.dtype)
        k, v = (expand_heads(x.to(wide), self.heads.count) for x in (k, v))
        pairs = self.edges.pairs.to(q.device)
        if not (q.shape[2] and k.shape[2] and pairs.numel()):
            return Attended(v.new_zeros(*q.shape[:3], v.shape[3]), call.state)
        row, column = pairs[0] - call.query_start, pairs[1]
        there = (row >= 0) & (row < q.shape[2]) & (column < k.shape[2])
        there = there & (column <= pairs[0]) if call.causal else there
        row, column = row.where(there, 0), column.where(there, 0)
        seen = there[None] if call.key_mask is None else there & call.key_mask[:, column]
        with torch.autocast(q.device.type, enabled=False):
            logits = F.leaky_relu(q.to(wide)[:, :, row, 0] + k[:, :, column, 0], self.slope)
            values = average_over_edges(logits, v, row, column, seen, queries=q.shape[2], dropout=self.dropped)
        return Attended(values, call.state)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Concatenate each query with each key, then a, then LeakyReLU, then the softmax of each row."""
        a = torch.cat([self.query, self.key.repeat_interleave(self.heads.group, 0)], -1)
        sums = torch.einsum("bhijd,hd->bhij", concatenated_pairs(q, k), a)
        logits = torch.where(sums > 0, sums, self.slope * sums)
        if self.edges is not None:
            i, j = (torch.arange(n, device=q.device) for n in logits.shape[2:])
            named = {(int(a), int(b)) for a, b in self.edges.pairs.T.tolist()}
            seen = [[(int(a), int(b)) in named for b in j] for a in i + call.query_start]
            logits = logits.masked_fill(~torch.tensor(seen, device=q.device).view(logits.shape[2:]), float("-inf"))
        return reference_softmax(logits, v, call)


def _edges(neighbours: str | patterns.Pattern | None) -> Edges | None:
    if neighbours is None:
        return None
    rule = (patterns.parse(neighbours) if isinstance(neighbours, str) else neighbours).rule
    if not isinstance(rule, Edges):
        raise ConfigError(
            f"graph: neighbours must be a list of edges, masks.edges(...) or block_model(...), got {neighbours!r}; "
            "`pattern` has every pattern"
        )
    return rule
