"""Sparse Transformer's fixed pattern in one head: the own block and the summary columns of all blocks."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import block, per_head, summary


@final
class FixedUnion(Sparse):
    """Softmax over the union of both fixed sets: the j <= i in the block of i, or in a summary column of any block.

    `stride` = l, `columns` = c. A1 = {j <= i: floor(j / l) = floor(i / l)}; A2 = {j <= i: j mod l >= l - c}, and
    different heads have different columns: head h takes l - c (v + 1) <= j mod l < l - c v with v = h mod floor(l / c).
    `fixed` is the same two sets apart.
    Cost: O(length (stride + length columns / stride) dim) time, O(length) memory. What is lost: far keys outside the
    columns, but through a layer before.
    State: the current block and the summary columns of all blocks, length c / l slots for each v in use.

    Args:
        heads: what to serve; causal.
        stride: positions in a block; the paper takes 128 or 256.
        columns: summary positions of a block for each head; the paper takes 8, 16 or 32.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: columns that are not from 1 to stride, an unknown `impl`.
        UnsupportedError: heads that are not causal, an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> FixedUnion(Heads(count=2, key_dim=8, causal=True), stride=16, columns=4)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Child et al. 2019, sections 4.2 (fixed; distinct columns for heads) and 4.3 (merged head).
    """

    info = Info(
        title="Fixed, in one head",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4, "columns": 1},
        {"stride": 5, "columns": 2, "impl": "torch"},
        {"stride": 3, "columns": 3, "scale": 0.7},
        {"stride": 6, "columns": 2, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys",
        "cross": "blocks need queries and keys at the same positions",
    }

    def __init__(
        self,
        heads: Heads,
        *,
        stride: int = 128,
        columns: int = 8,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if not 1 <= columns <= stride:
            raise ConfigError(f"fixed_union needs 1 <= columns <= stride, got {stride=}, {columns=}")
        around = stride // columns
        seen = per_head(*(block(stride) | summary(stride, columns, h % around * columns) for h in range(heads.count)))
        super().__init__(heads, seen, scale=scale, impl=impl)
        self.stride, self.columns = stride, columns

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """In the block of i, or in the summary of the head."""
        own = i - i % self.stride <= j
        from_end = (self.stride - 1 - j % self.stride) // self.columns  # the summary that j belongs to, 0 the last
        around = self.stride // self.columns
        return torch.stack([own | (from_end == head % around) for head in range(self.heads.count)])
