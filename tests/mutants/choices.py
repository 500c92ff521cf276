"""Mutants that choose in half precision and say so: replayed, their choices give the right values."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

import torch
from torch import Tensor

from regard.attention.routed.shortlist import Shortlist
from regard.core.attention import Call
from tests.mutants import mutant


@mutant("clear_choices")
class RanksInHalf(Shortlist):
    """Ranks by scores that are rounded to float16."""

    samples = ({"num_keys": 2, "feature_map": "identity"},)

    def lists(self, q: Tensor, scored: Tensor, call: Call) -> Tensor:
        if q.dtype == torch.float64:
            return super().lists(q, scored, call)
        scores = torch.einsum("bhid,bhjd->bhij", q, scored.repeat_interleave(self.heads.group, 1)).half()
        scores = scores.masked_fill(~call.visible(q, scored), float("-inf"))
        best = scores.sort(stable=True, dim=-1, descending=True)
        return best.indices.masked_fill(best.values.isneginf(), -1)[..., : self.num_keys]
