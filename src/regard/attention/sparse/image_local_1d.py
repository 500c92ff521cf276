"""Attention of a block of pixels to itself and to the pixels before it, in raster order."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern


@final
class ImageLocal1d(Sparse):
    """Softmax over the query's block and the M positions before that block: the j <= i with j >= B floor(i / B) - M.

    Slots are pixels (or channels of pixels) in raster order. `block_size` = B, `memory` = M; with M = B the query sees
    its own block and the one before it.
    Cost: O(length (block_size + memory) dim) time, O(length) memory. What is lost: pixels further back, among them the
    rows above where a row is longer than M; further layers reach them block by block.
    State: the current block and the M positions before it, between M and M + B - 1 slots.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 1, 9, 8)
        >>> mechanism = ImageLocal1d(Heads(count=1, key_dim=8, causal=True), block_size=3, memory=2)
        >>> (weights(mechanism, q, q) > 0).int().argmax(-1).flatten().tolist()  # the first key that each query sees
        [0, 0, 0, 1, 1, 1, 4, 4, 4]

    Source: Parmar et al. 2018, section 3.3 (1D local attention); the default sizes are those of its public code.
    """

    default_info = Info(
        title="Blocks of an image's raster",
        source="Parmar et al. 2018, section 3.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=1,
        state="window",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"block_size": 2, "memory": 3},
        {"block_size": 25, "memory": 6},
        {"block_size": 1, "memory": 2, "scale": 0.7},
        {"block_size": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "it sees the pixels generated before",
        "cross": "blocks need queries and keys in the same image",
    }

    block_size: Annotated[int, Ge(1)] = 256
    """positions in a block"""
    memory: Annotated[int, Ge(0)] | None = None
    """positions before the block that its queries see too; None: as many as `block_size`"""

    @property
    def before(self) -> int:
        """M."""
        return self.block_size if self.memory is None else self.memory

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Blocks of one slot are windows."""
        info = super().facts(options)
        return replace(info, anchored=False) if options["block_size"] == 1 else info

    def pairs(self) -> Pattern:
        """The block and the positions before it."""
        return _block_and_before(self.block_size, self.before)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """In the block of i, or at most M positions before its first."""
        start = i - i % self.block_size
        return (j <= i) & (start - j <= self.before)

    def kept_slots(self, length: int) -> int:
        """The current block, and M positions before it."""
        inside = length % self.block_size
        return inside + min(self.before, length - inside)


@lru_cache
def _block_and_before(block_size: int, memory: int) -> Pattern:
    def rule(i: Any, j: Any) -> Any:
        return (j <= i) & (j >= i // block_size * block_size - memory)

    return Pattern(rule, distances=(0, block_size - 1 + memory))
