"""Mutants that choose in half precision and say so: replayed, their choices give the right values."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from typing import Any

import torch
from torch import Tensor

from regard.attention.dense.quantized import Quantized
from regard.attention.kernel.randomized import Randomized
from regard.attention.routed.lsh import Lsh
from regard.attention.routed.routing import Routing
from regard.attention.routed.shortlist import Shortlist
from regard.attention.routed.vector_quantized import VectorQuantized
from regard.core.attention import Attended, Call
from regard_lab.published.routing_published import RoutingPublished
from tests.mutants import mutant


def halved(x: Tensor) -> Tensor:
    """Rounded to half precision, unless it is exact."""
    return x.bfloat16().to(x.dtype) if x.dtype == torch.float32 else x


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


@mutant("clear_choices")
class ReadsInHalf(Shortlist):
    """Keeps in bfloat16 what the score reads of a key."""

    def scored(self, x: Tensor, group: int) -> Tensor:
        return halved(super().scored(x, group))


@mutant("clear_choices")
class HashesInHalf(Lsh):
    """Turns vectors that are rounded to bfloat16."""

    def hash(self, x: Tensor) -> Tensor:
        return super().hash(halved(x))


@mutant("clear_choices")
class CodesInHalf(VectorQuantized):
    """Looks for the nearest code in bfloat16."""

    @staticmethod
    def codes(k: Tensor, codebook: Tensor) -> Tensor:
        return VectorQuantized.codes(halved(k), halved(codebook))


@mutant("clear_choices")
class RoutesInHalf(Routing):
    """Looks for the nearest centroid in bfloat16."""

    def nearest(self, x: Tensor) -> Tensor:
        return super().nearest(halved(x))


@mutant("clear_choices")
class TakesInHalf(RoutingPublished):
    """Orders tokens by scores of bfloat16 vectors."""

    def ranks(self, x: Tensor) -> Tensor:
        return super().ranks(halved(x))


@mutant("clear_choices")
class RoundsInHalf(Quantized):
    """Rounds keys to bfloat16 before it rounds them to codes."""

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().decisions(q, halved(k))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, halved(k), v, call)


@mutant("clear_choices")
class DrawsInHalf(Randomized):
    """Draws keys by the numbers of a generator of float16."""

    def _noise(self, q: Tensor, first: int) -> Any:
        normal, uniform = super()._noise(q, first)
        return normal, uniform if q.dtype == torch.float64 else uniform.half().to(uniform.dtype)
