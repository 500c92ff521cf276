"""Mutants of published patterns: one key too few, one column aside, one block too late."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.attention.sparse.adaptive_span import AdaptiveSpan
from regard.attention.sparse.atrous import Atrous
from regard.attention.sparse.blockwise import Blockwise
from regard.attention.sparse.dynamic_span import DynamicSpan
from regard.attention.sparse.fixed import Fixed
from regard.attention.sparse.fixed_union import FixedUnion
from regard.attention.sparse.image_local_1d import ImageLocal1d
from regard.attention.sparse.image_local_2d import ImageLocal2d, place
from regard.attention.sparse.local_atrous import LocalAtrous
from regard.attention.sparse.strided import Strided
from regard.attention.sparse.strided_union import StridedUnion
from regard.core.attention import Attended, Call
from regard.patterns import Pattern, block, causal, per_head, strided, summary, window
from tests.mutants import mutant


@mutant("reference")
class WindowOfStrideKeys(Strided):
    """A window of l keys, the query's own among them, as in the public code; the paper has l + 1."""

    def setup(self) -> None:
        super().setup()
        self.pattern = causal & per_head(
            *(strided(self.stride) if h % 2 else window(self.stride - 1) for h in range(self.heads.count))
        )


@mutant("reference")
class UnionWithoutTheLastOfTheWindow(StridedUnion):
    """Counts on the far keys to hold the end of the window, and takes the far keys from two strides on."""

    def setup(self) -> None:
        super().setup()
        self.pattern = causal & (window(self.stride - 1) | (strided(self.stride) & ~window(self.stride)))


@mutant("reference")
class SummaryOneColumnAside(Fixed):
    """Summary columns from l - c - 1 on: the last position of a block is in none."""

    def setup(self) -> None:
        super().setup()
        pair = block(self.stride), summary(self.stride, self.columns, 1)
        self.pattern = causal & per_head(*(pair[h % 2] for h in range(self.heads.count)))


@mutant("reference")
class SameColumnsForAllHeads(FixedUnion):
    """Every head has the last columns, so that the others carry nothing."""

    def setup(self) -> None:
        super().setup()
        self.pattern = causal & (block(self.stride) | summary(self.stride, self.columns))


@mutant("state_splits")
class BlocksOfTheCall(FixedUnion):
    """Counts the blocks of queries from the beginning of the call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(query_start=k.shape[2] - q.shape[2]))


@mutant("reference")
class PhaseOfTheKeys(Atrous):
    """Every r-th key of the sequence, the same ones for all queries."""

    def setup(self) -> None:
        super().setup()
        dilation = self.dilation
        grid = Pattern(lambda i, j: j % dilation == 0)
        self.pattern = causal & grid if self.heads.causal else grid


@mutant("reference")
class PhaseOneAside(LocalAtrous):
    """Far keys at the distances 1, r + 1, 2 r + 1, ..."""

    def setup(self) -> None:
        super().setup()
        dilation = self.dilation
        seen = window(self.window) | Pattern(lambda i, j: (i - j - 1) % dilation == 0)
        self.pattern = causal & seen if self.heads.causal else seen


@mutant("reference")
class WithoutTheBlockBefore(ImageLocal1d):
    """Sees its own block alone."""

    def setup(self) -> None:
        super().setup()
        self.pattern = causal & block(self.block_size)


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


@mutant("causality")
class LaterBlockVisible(ImageLocal2d):
    """Takes the raster for the order of generation, and sees rows of the block to the right."""

    def setup(self) -> None:
        super().setup()
        width, channels, sizes, flange = self.width, self.channels, self.query_block, self.flange

        def rule(i: Any, j: Any) -> Any:
            (row, column), (r, c) = place(i // channels, width, sizes), place(j // channels, width, sizes)
            top, left = row // sizes[0] * sizes[0], column // sizes[1] * sizes[1]
            near = (r >= top - flange[0]) & (c >= left - flange[1]) & (c < left + sizes[1] + flange[1])
            return near & (r * width + c <= row * width + column)

        self.pattern = Pattern(rule)


@mutant("reference")
class InversePermutation(Blockwise):
    """pi(block(j)) = block(i): the same sets of blocks, the other way round."""

    def setup(self) -> None:
        super().setup()
        turned = [tuple((b - h) % self.blocks for b in range(self.blocks)) for h in range(self.heads.count)]
        self.pattern = Blockwise(self.heads, blocks=self.blocks, permutations=tuple(turned)).pattern


@mutant("right_padding")
class BlockSizeOfTheCall(Blockwise):
    """Divides the length of the call into blocks, so that padding moves their borders."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        size = -(-k.shape[2] // self.blocks)
        heads = replace(self.heads, max_length=size * self.blocks)
        self.pattern = Blockwise(heads, blocks=self.blocks, shift=self.shift).pattern
        return super().attend(q, k, v, call)


@mutant("reference")
class NoRamp(AdaptiveSpan):
    """Sees keys at full weight to the end of the ramp."""

    def log_mask(self, distances: Tensor) -> Tensor:
        mask = super().log_mask(distances)
        return mask.masked_fill(mask.isfinite(), 0.0)


@mutant("reference")
class DistancesFromTheTokenBefore(AdaptiveSpan):
    """Counts distances from the token before the query on."""

    def log_mask(self, distances: Tensor) -> Tensor:
        return super().log_mask((distances - 1).clamp(min=0))


@mutant("reference")
class KeepsNoRamp(AdaptiveSpan):
    """Computes the keys up to z, without the ramp behind it."""

    def needed(self) -> int:
        return int(self.z.max())


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


@mutant("reference")
class OneSpanForAll(DynamicSpan):
    """Gives every token the longest span of the call."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        longest = call.inputs["span"].amax((1, 2), keepdim=True).expand_as(call.inputs["span"])
        return super().attend(q, k, v, call._replace(inputs={"span": longest}))
