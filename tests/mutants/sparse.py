"""Mutants of published patterns: one key too few, one column aside, one block too late."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.attention.sparse.adaptive_span import AdaptiveSpan
from regard.attention.sparse.image_local_2d import ImageLocal2d, place
from regard.core.attention import Attended, Call
from regard.patterns import Pattern
from tests.mutants import mutant


@mutant("reference")
class FlangeOneColumnShort(ImageLocal2d):
    """Leaves out the last column of the flange to the right."""

    def setup(self) -> None:
        super().setup()
        whole, width, channels, sizes, beside = (
            self.pattern,
            self.width,
            self.channels,
            self.query_block,
            self.flange[1],
        )

        def inside(i: Any, j: Any) -> Any:
            left = place(i // channels, width, sizes)[1] // sizes[1] * sizes[1]
            return place(j // channels, width, sizes)[1] < left + sizes[1] + beside - 1

        self.pattern = whole & Pattern(inside, distances=whole.distances)


@mutant("bias_reach")
class SpanOfColumnsAlone(AdaptiveSpan):
    """Loses the span at distances for which a bias has no column."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        bias = call.bias
        if bias is None or bias.curve is None:
            return super().attend(q, k, v, call)
        self.trim()
        own = self.log_mask(bias.high - torch.arange(bias.distances, device=q.device))
        return Sparse.attend(self, q, k, v, call._replace(bias=replace(bias, curve=own + bias.curve)))
