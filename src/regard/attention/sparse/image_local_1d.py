"""Attention of a block of pixels to itself and to the pixels before it, in raster order."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, final

from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import Pattern


@final
class ImageLocal1d(Sparse):
    """Softmax over the query's block and the M positions before that block: the j <= i with j >= B floor(i / B) - M.

    Slots are pixels (or channels of pixels) in raster order. `block_size` = B, `memory` = M; with M = B the query sees
    its own block and the one before it.
    Cost: O(length (block_size + memory) dim) time, O(length) memory. What is lost: pixels further back, among them the
    rows above where a row is longer than M; further layers reach them block by block.
    State: the current block and the M positions before it, between M and M + B - 1 slots.

    Args:
        heads: what to serve; causal.
        block_size: positions in a block.
        memory: positions before the block that its queries see too; None: as many as `block_size`.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a block_size below 1, a negative memory, an unknown `impl`.
        UnsupportedError: heads that are not causal, an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> ImageLocal1d(Heads(count=2, key_dim=8, causal=True), block_size=28)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Parmar et al. 2018, section 3.3 (1D local attention); the default sizes are those of its public code.
    """

    info = Info(
        title="Blocks of an image's raster",
        source="Parmar et al. 2018, section 3.3",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        time=1,
        state="window",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"block_size": 2, "memory": 3},
        {"block_size": 25, "memory": 6, "impl": "torch"},
        {"block_size": 1, "memory": 2, "scale": 0.7},
        {"block_size": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "it sees the pixels generated before",
        "cross": "blocks need queries and keys in the same image",
    }

    def __init__(
        self,
        heads: Heads,
        *,
        block_size: int = 256,
        memory: int | None = None,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if block_size < 1 or (memory is not None and memory < 0):
            raise ConfigError(f"image_local_1d needs block_size >= 1 and memory >= 0, got {block_size=}, {memory=}")
        self_and_before = _block_and_before(block_size, block_size if memory is None else memory)
        super().__init__(heads, self_and_before, scale=scale, impl=impl)
        self.block_size, self.memory = block_size, block_size if memory is None else memory

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """In the block of i, or at most M positions before its first."""
        start = i - i % self.block_size
        return (j <= i) & (start - j <= self.memory)


@lru_cache
def _block_and_before(block_size: int, memory: int) -> Pattern:
    def rule(i: Any, j: Any) -> Any:
        return (j <= i) & (j >= i // block_size * block_size - memory)

    return Pattern(rule, distances=(0, block_size - 1 + memory))
