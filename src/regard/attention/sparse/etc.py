"""Two streams in one sequence: long tokens in a window, and global tokens that summarise them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.sparse import Globals, Tokens, View, masked_average
from regard.bias import ScoreBias
from regard.core import generator
from regard.engines.tiles.gathered import spanning
from regard.errors import ConfigError, nearest
from regard.info import Heads, Info, Supports
from regard.patterns import window as neighbours

CHOICES = {"g2g": ("all", "self"), "g2l": ("all", "segment"), "l2g": ("all", "segment")}


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

    Args:
        heads: what to serve; encoders only.
        window: long tokens on either side.
        max_distance: further distances share a label.
        num_global: the first tokens that are global without a mark.
        g2g, g2l, l2g: what global tokens see of their kind and of long ones, and long ones of them.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition.

    Raises:
        ConfigError: a negative number, an unknown mask or `impl`.
        UnsupportedError: causal heads, an `impl` that this mechanism does not have.

    Example:
        >>> from regard import Heads
        >>> q, marks = torch.randn(1, 2, 6, 8), torch.tensor([[-1, -2, 1, 1, 2, 2]])
        >>> Etc(Heads(count=2, key_dim=8), window=1, num_global=0, g2l="segment")(q, q, q, marks=marks).values.shape
        torch.Size([1, 2, 6, 8])

    Source: Ainslie et al. 2020, section 3.
    """

    info = Info(
        title="Long and global streams (ETC)",
        source="Ainslie et al. 2020, section 3",
        supports=Supports(bidirectional=True, key_mask=True, bias=True, marks=True),
        time=1,
        anchored=True,
        segments=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3, "max_distance": 2},
        {"window": 2, "num_global": 0, "g2l": "segment", "scale": 0.7, "impl": "torch"},
        {"window": 2, "num_global": 2, "g2g": "self", "l2g": "segment"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "a global token sees what comes after it",
        "cross": "a window needs queries and keys at the same positions",
    }

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Without first global tokens nothing depends on absolute slots."""
        return replace(super().facts(**options), anchored=bool(options.get("num_global", 1)))

    def __init__(
        self,
        heads: Heads,
        *,
        window: int = 84,
        max_distance: int = 12,
        num_global: int = 1,
        g2g: Literal["all", "self"] = "all",
        g2l: Literal["all", "segment"] = "all",
        l2g: Literal["all", "segment"] = "all",
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch"] = "auto",
    ) -> None:
        if min(window, max_distance) < 0:
            raise ConfigError(f"etc needs window >= 0 and max_distance >= 0, got {window=}, {max_distance=}")
        for name, choice in (("g2g", g2g), ("g2l", g2l), ("l2g", l2g)):
            if choice not in CHOICES[name]:
                raise ConfigError(f"etc has no {name}={choice!r}; {nearest(choice, CHOICES[name])}")
        pattern = neighbours(window)
        super().__init__(
            heads, pattern, leading=num_global, symmetric=True, scale=scale, impl=impl, num_global=num_global
        )
        self.window, self.max_distance, self.num_global = window, max_distance, num_global
        self.g2g, self.g2l, self.l2g = g2g, g2l, l2g
        draw = generator(heads.seed, "etc")
        self.labels = nn.Parameter(0.02 * torch.randn(heads.count, 2 * max_distance + 5, heads.key_dim, generator=draw))

    @staticmethod
    def marked(marks: Tensor) -> Tensor:
        """Negative marks are global tokens."""
        return marks < 0

    def near(self, q: Tensor, bias: ScoreBias | None) -> ScoreBias:
        """l2l: a logit per query and distance, q_i . a_ij, beside the bias of the call."""
        far, most = min(self.window, q.shape[2] - 1), self.max_distance
        row = torch.arange(-far, far + 1, device=q.device).clamp(-most, most) + most
        own = ScoreBias(high=far, query=q * self.factor, relative=self.labels[:, row].to(q.dtype))
        if bias is None:
            return own
        bias = spanning(bias, -far, far)
        if bias.query is not None and bias.relative is not None:
            assert own.query is not None
            assert own.relative is not None
            query = torch.cat([own.query, bias.query.expand(*q.shape[:3], -1)], -1)
            relative = torch.cat([own.relative, bias.relative.expand(q.shape[1], -1, -1)], -1)
            own = replace(own, query=query, relative=relative)
        return replace(own, curve=bias.curve, table=bias.table)

    def column_terms(
        self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 queries globals"], Float[Tensor, "b h queries globals"]]:
        """l2g: every global token or one's own, and the label of that."""
        allowed, logits = super().column_terms(q, tokens, view, bias)
        member = self._members(view, tokens).mT[:, None]
        if self.l2g == "segment":
            allowed = allowed & member
        other, own = self._products(q, slice(-4, -2)).split(1, -1)
        label = torch.where(member, own, other)
        return allowed, label if logits is None else logits + label

    def row_terms(
        self, q: Tensor, tokens: Tokens, view: View, bias: ScoreBias | None
    ) -> tuple[Bool[Tensor, "batch 1 globals keys"], Float[Tensor, "b h globals keys"]]:
        """g2g and g2l: what their masks allow, and the labels of distances and of membership."""
        allowed, logits = super().row_terms(q, tokens, view, bias)
        member, kin = self._members(view, tokens), self._global(view)[:, None]
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
        """Which keys belong to the segment of which global tokens; all belong to the first ones."""
        every = (view.keys[tokens.at] < self.num_global)[:, :, None].expand(-1, -1, view.keys.shape[0])
        if view.marks is None:
            return every
        return every | (view.marks.gather(1, tokens.at)[:, :, None] == -view.marks[:, None])

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """l2l."""
        return (i - j).abs() <= self.window

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
        """A key for every pair, (queries, keys, dim), from the label of the pair."""
        length, most, group = q.shape[2], self.max_distance, self.heads.group
        slots = torch.arange(length, device=q.device)
        real = torch.ones(len(q), length, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        marks = torch.zeros_like(real, dtype=torch.long) if marks is None else marks
        free = slots < self.num_global
        kin = (free | (marks < 0)) & real
        distance = (slots[None] - slots[:, None]).expand(len(q), -1, -1)
        rows, columns = kin[:, :, None], kin[:, None, :]
        own = (marks[:, :, None] == -marks[:, None, :]) | (free[:, None] & rows) | (free & columns)
        label = torch.where(rows == columns, distance.clamp(-most, most) + most, 2 * most + 1 + 2 * rows + own.long())
        vectors = self.labels[:, label].transpose(0, 1)
        keys = k.repeat_interleave(group, 1)[:, :, None] + vectors
        logits = self.factor * torch.einsum("bhid,bhijd->bhij", q, keys)
        if bias is not None:
            logits = logits + bias.logits(slots, slots).to(q.dtype)
        of_kin = torch.where(columns, (distance == 0) | (self.g2g == "all"), own | (self.g2l == "all"))
        of_long = torch.where(columns, own | (self.l2g == "all"), self.allowed(slots[:, None], slots[None]))
        seen = torch.where(rows, of_kin, of_long) & real[:, None]
        return masked_average(logits, seen[:, None], v.repeat_interleave(group, 1))
