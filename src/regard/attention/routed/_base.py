"""The routed template: discrete choices say which keys a query meets."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.core.attention import Attention, Call
from regard.core.info import Info
from regard.engines.routed import nearest_points
from regard.engines.routed.buckets import Bucketing, Rule, bucketed


class Routed(Attention):
    """Template: o_i = sum_j softmax_j(z_ij) v_j, where z_ij follows from choices (buckets, lists of slots, codes).

    Choices are made twice, in one form, a tensor or a tuple of tensors: `decisions` makes those of the algorithm, and
    `choices` those of the definition. `logits` is the definition under given choices, so that `reference` can replay
    `decisions` where a tie or a rounding would choose otherwise.

    `attend` decides, keeps with `Call.remember` what later calls need of each key, and averages by an engine.
    `state_layout` adds to keys and values what is kept besides them:

        queries, keys = self.decisions(q, k)
        slots, call = call.remember(k=k, v=v, buckets=keys)
    """

    @abstractmethod
    def decisions(self, q: Tensor, k: Tensor) -> Any:
        """The choices that `attend` makes in a call of its own; `reference` takes them to replay them."""

    @abstractmethod
    def choices(self, q: Tensor, k: Tensor, call: Call) -> Any:
        """The choices by definition, explicit and slow, in the form of `decisions`."""

    @abstractmethod
    def logits(self, q: Tensor, k: Tensor, choices: Any, call: Call) -> Float[Tensor, "batch heads queries keys"]:
        """The logits by definition under given choices, -inf where a query does not meet a key.

        What a query may not see (`call.visible`) need not be hidden.
        """

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Any = None) -> Tensor:
        """Every choice, then every logit, then the softmax of each row; with `decisions`, under these choices."""
        choices = self.choices(q, k, call) if decisions is None else decisions
        return reference_softmax(self.logits(q, k, choices, call), v, call)

    def query_mask(self, q: Tensor, call: Call) -> Bool[Tensor, "batch queries"] | None:
        """The mask of the queries, True = real, where one projection serves as query and key; None: no mask."""
        if call.key_mask is None or not self.info.shares_query_key:
            return None
        return call.key_mask[:, call.key_mask.shape[1] - q.shape[2] :]


class Bucketed(Routed):
    """Template: o_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j over the keys that match one of the query's codes.

    With `share` one projection serves as query and key: j = i counts only where no other key matches (published code
    subtracts 1e5 from that logit, which costs float32 its last digits), and a hidden position gives 0.
    """

    share: bool = True
    """whether one projection serves as query and key; False routes both, sees its own position like any other, permits
    cross-attention, and gives 0 to a query that meets no key"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """share=False also serves cross-attention."""
        info = cls.default_info
        if options["share"]:
            return info
        return replace(info, supports=replace(info.supports, cross=True), rows_sum_to_one=False, shares_query_key=False)

    def average(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        codes: tuple[Int[Tensor, "batch heads queries rounds"], Int[Tensor, "batch kv_heads keys rounds"]],
        call: Call,
        choices: int,
        crowd: int,
        *,
        duplicates: bool = False,
    ) -> Tensor:
        """The softmax over the keys whose codes match, by tiles of equal codes.

        Args:
            q, k, v, codes, call: queries, keys, values, their codes in each round, the call.
            choices, crowd, duplicates: see `Rule`.
        """
        rule = Rule(call.causal, not self.share, duplicates, choices, crowd)
        masks = self.query_mask(q, call), call.key_mask
        values, lse = bucketed(Bucketing(q, k, v, *codes, *masks, self.heads.key_dim**-0.5, *rule))
        if self.share:
            own_values = v[:, :, v.shape[2] - q.shape[2] :].repeat_interleave(self.heads.group, 1)
            values = torch.where(lse[..., None] == float("-inf"), own_values, values.to(v.dtype))
        return values.to(v.dtype)

    def without_itself(self, q: Tensor, k: Tensor, times: Tensor, call: Call) -> Tensor:
        """How often each pair counts, by definition: with `share` a query counts itself only where nothing else does.

        Args:
            q, k: for their shapes.
            times: (batch, heads, queries, keys), integers: how often the codes of a pair match.
        """
        seen = call.visible(q, k)
        times = times * seen
        if not self.share:
            return times
        i, j = (torch.arange(n, device=q.device) for n in times.shape[2:])
        itself = seen & (i[:, None] + call.query_start == j)
        others = times * (~itself & itself.any(-1, keepdim=True))  # a hidden query has no place of its own
        return torch.where(others.any(-1, keepdim=True), others, itself.long())

    def counted_logits(self, q: Tensor, k: Tensor, times: Tensor) -> Tensor:
        """q_i . k_j / sqrt(d) + log(times), -inf where a pair does not count, by definition."""
        logits = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1))
        logits = logits * self.heads.key_dim**-0.5 + times.to(logits.dtype).log()
        lost = q.isnan().any(-1, keepdim=True)  # its own row; a key that is not met may be NaN too
        return logits.masked_fill((times == 0) & ~lost, float("-inf"))


def nearest(
    x: Float[Tensor, "batch heads length dim"],
    points: Float[Tensor, "kv_heads sets choices dim"],
    offsets: Float[Tensor, "kv_heads sets choices"],
) -> Int[Tensor, "batch heads length sets"]:
    """argmax_s x . points_s + offsets_s in each set; heads of a group share their points. No gradient."""
    batch, heads, length, _ = x.shape
    kv_heads, sets = points.shape[:2]
    rows = x.detach().unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(1, 3)  # (batch, group, position)
    chosen = nearest_points(rows, points, offsets)
    return chosen.view(kv_heads, batch, heads // kv_heads, length, sets).transpose(0, 1).flatten(1, 2)
