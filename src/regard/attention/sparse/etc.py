"""Two streams in one sequence: long tokens in a window, and global tokens that summarise them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.sparse._base import masked_average
from regard.attention.sparse._globals import Globals, Tokens, View
from regard.core.attention import Call, generator
from regard.core.bias import ScoreBias
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.tiles.gathered import spanning
from regard.patterns import Pattern
from regard.patterns import window as neighbours


@final
class Etc(Globals):
    """Softmax with relative labels, z_ij = scale q_i . (k_j + a_ij): long tokens see a window, global tokens see all.

    A mark of s > 0 is a long token of segment s, -s the global token that summarises it, 0 a long token of no segment;
    the first `num_global` tokens are global and belong to every segment. Long row i: one softmax over the long j with
    |i - j| <= w (l2l) and the global tokens (l2g). Global row: one over the global (g2g) and the long tokens (g2l).
    Masks: `g2l` and `l2g` are `all` or only between a token and its own `segment`; `g2g` is `all` or `self`.
    a_ij is a learned vector per head and label, `labels`: P[clip(j - i, -c, c) + c] within a stream, one of two for
    l2g and of two for g2l (other segment, own). `window` = w, `max_distance` = c (the paper's radius and k). Distances
    are those of slots: with all global tokens in front both streams count as in the paper. Projections of their own
    for each stream are the layer's: `projections="global"` or `"separate"`.
    Cost: O(length (w + G) dim) time, O(length (G + dim)) memory. What is lost: as in longformer.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 6, 6), torch.eye(6).reshape(1, 1, 6, 6)
        >>> mechanism = Etc(Heads(count=1, key_dim=6), window=1, num_global=0, g2l="segment")
        >>> output = mechanism(q, q, v, marks=torch.tensor([[-1, -2, 1, 1, 2, 2]]))
        >>> (output.values[0, 0, :2] > 0).int().tolist()  # both global tokens, and each one's segment
        [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]]

    Source: Ainslie et al. 2020, section 3.
    """

    default_info = Info(
        title="Long and global streams (ETC)",
        source="Ainslie et al. 2020, section 3",
        supports=Supports(bidirectional=True, key_mask=True, bias=True, marks=True, dropout=True),
        time=1,
        anchored=True,
        segments=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3, "max_distance": 2},
        {"window": 2, "num_global": 0, "g2l": "segment", "scale": 0.7},
        {"window": 2, "num_global": 2, "g2g": "self", "l2g": "segment"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "a global token sees what comes after it",
        "cross": "a window needs queries and keys at the same positions",
    }

    window: Annotated[int, Ge(0)] = 84
    """long tokens on either side"""
    max_distance: Annotated[int, Ge(0)] = 12
    """further distances share a label"""
    num_global: Annotated[int, Ge(0)] = 1
    """the first tokens that are global without a mark"""
    g2g: Literal["all", "self"] = "all"
    """which global tokens a global token sees"""
    g2l: Literal["all", "segment"] = "all"
    """which long tokens a global token sees"""
    l2g: Literal["all", "segment"] = "all"
    """which global tokens a long token sees"""

    labels: nn.Parameter = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Without first global tokens nothing depends on absolute slots."""
        return replace(cls.default_info, anchored=options["num_global"] > 0)

    def draw_weights(self) -> None:
        """The vectors of the labels."""
        shape = self.heads.count, 2 * self.max_distance + 5, self.heads.key_dim
        source = generator(self.heads.seed, "etc")
        self.labels = nn.Parameter(0.02 * torch.randn(shape, generator=source))

    @property
    def leading(self) -> int:
        """The first tokens that are global."""
        return self.num_global

    def pairs(self) -> Pattern:
        """l2l."""
        return neighbours(self.window)

    @staticmethod
    def marked(marks: Tensor) -> Tensor:
        """Negative marks are global tokens."""
        return marks < 0

    def near(self, q: Tensor, bias: ScoreBias | None) -> ScoreBias:
        """l2l: a logit per query and distance, q_i . a_ij, beside the bias of the call."""
        far, most = min(self.window, q.shape[2] - 1), self.max_distance
        row = torch.arange(-far, far + 1, device=q.device).clamp(-most, most) + most
        query, relative = q * self.factor, self.labels[:, row].to(q.dtype)
        if bias is None:
            return ScoreBias(high=far, query=query, relative=relative)
        bias = spanning(bias, -far, far)
        if bias.query is not None and bias.relative is not None:
            query = torch.cat([query, bias.query.expand(*q.shape[:3], -1)], -1)
            relative = torch.cat([relative, bias.relative.expand(q.shape[1], -1, -1)], -1)
        return replace(bias, high=far, query=query, relative=relative)

    def column_terms(
        self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 queries globals"], Float[Tensor, "b h queries globals"]]:
        """l2g: every global token or one's own, and the label of that."""
        allowed, logits = super().column_terms(q, tokens, view, bias)
        member = self._members(view, tokens).mT[:, None]
        if self.l2g == "segment":
            allowed = allowed & member
        outside_label, inside_label = self._products(q, slice(-4, -2)).split(1, -1)
        label = torch.where(member, inside_label, outside_label)
        return allowed, label if logits is None else logits + label

    def row_terms(
        self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 globals keys"], Float[Tensor, "b h globals keys"]]:
        """g2g and g2l: what their masks allow, and the labels of distances and of membership."""
        allowed, logits = super().row_terms(q, tokens, view, bias)
        member, kin = self._members(view, tokens), self.global_keys(view)[:, None]
        distance = view.keys - view.keys[tokens.at][:, :, None]
        if self.g2l == "segment":
            allowed = allowed & (kin | member)[:, None]
        if self.g2g == "self":
            allowed = allowed & (~kin | (distance == 0))[:, None]
        most = self.max_distance
        label = torch.where(kin, distance.clamp(-most, most) + most, 2 * most + 3 + member.long())
        label = label[:, None].expand(-1, q.shape[1], -1, -1)
        label = self._products(q, slice(None)).gather(-1, label)
        return allowed, label if logits is None else logits + label

    def _products(self, q: Tensor, which: slice) -> Float[Tensor, "batch heads queries labels"]:
        return self.factor * q @ self.labels[:, which].mT.to(q.dtype)

    def _members(self, view: View, tokens: Tokens) -> Bool[Tensor, "batch globals keys"]:
        """The keys in the segment of each global token, as a mask; all belong to the first ones."""
        every = (view.keys[tokens.at] < self.num_global)[:, :, None].expand(-1, -1, view.keys.shape[0])
        if view.marks is None:
            return every
        return every | (view.marks.gather(1, tokens.at)[:, :, None] == -view.marks[:, None])

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """l2l."""
        return (i - j).abs() <= self.window

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """A key for every pair, (queries, keys, dim), from the label of the pair."""
        length, most, group = q.shape[2], self.max_distance, self.heads.group
        slots = torch.arange(length, device=q.device)
        real = torch.ones(len(q), length, dtype=torch.bool, device=q.device) if call.key_mask is None else call.key_mask
        marks = torch.zeros_like(real, dtype=torch.long) if call.marks is None else call.marks
        free = slots < self.num_global
        kin = (free | (marks < 0)) & real
        distance = (slots[None] - slots[:, None]).expand(len(q), -1, -1)
        rows, columns = kin[:, :, None], kin[:, None, :]
        same_segment = (marks[:, :, None] == -marks[:, None, :]) | (free[:, None] & rows) | (free & columns)
        kind = 2 * most + 1 + 2 * rows + same_segment.long()
        label = torch.where(rows == columns, distance.clamp(-most, most) + most, kind)
        vectors = self.labels[:, label].transpose(0, 1)
        keys = k.repeat_interleave(group, 1)[:, :, None] + vectors
        logits = self.factor * torch.einsum("bhid,bhijd->bhij", q, keys)
        if call.bias is not None:
            logits = logits + call.bias.logits(slots, slots).to(q.dtype)
        of_kin = torch.where(columns, (distance == 0) | (self.g2g == "all"), same_segment | (self.g2l == "all"))
        of_long = torch.where(columns, same_segment | (self.l2g == "all"), self.allowed(slots[:, None], slots[None]))
        seen = torch.where(rows, of_kin, of_long) & real[:, None]
        return masked_average(logits, seen[:, None], v.repeat_interleave(group, 1))
