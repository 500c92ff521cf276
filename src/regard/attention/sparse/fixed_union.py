"""Sparse Transformer's fixed pattern in one head: the own block and the summary columns of all blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.patterns import Pattern, block, per_head, summary


@final
class FixedUnion(Sparse):
    """Softmax over the union of both fixed sets: the j <= i in the block of i, or in a summary column of any block.

    `stride` = l, `columns` = c. A1 = {j <= i: floor(j / l) = floor(i / l)}; A2 = {j <= i: j mod l >= l - c}, and
    different heads have different columns: head h takes l - c (v + 1) <= j mod l < l - c v with v = h mod floor(l / c).
    `fixed` is the same two sets apart.
    Cost: O(length (stride + length columns / stride) dim) time, O(length) memory. What is lost: far keys outside the
    columns, but through a layer before.
    State: the current block and the summary columns of all blocks, length c / l slots for each v in use.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 2, 10, 8)
        >>> seen = weights(FixedUnion(Heads(count=2, key_dim=8, causal=True), stride=4, columns=1), q, q) > 0
        >>> [seen[0, head, 9].nonzero().flatten().tolist() for head in (0, 1)]  # the block from 8 on, and other columns
        [[3, 7, 8, 9], [2, 6, 8, 9]]

    Source: Child et al. 2019, sections 4.2 (fixed; distinct columns for heads) and 4.3 (merged head).
    """

    default_info = Info(
        title="Fixed, in one head",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=2,
        state="length",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4, "columns": 1},
        {"stride": 5, "columns": 2},
        {"stride": 3, "columns": 3, "scale": 0.7},
        {"stride": 6, "columns": 2, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys",
        "cross": "blocks need queries and keys at the same positions",
    }

    stride: Annotated[int, Ge(1)] = 128
    """positions in a block; the paper takes 128 or 256"""
    columns: Annotated[int, Ge(1)] = 8
    """summary positions of a block for each head, at most stride; the paper takes 8, 16 or 32"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Where every column is a summary, every earlier key is seen."""
        info = super().facts(options)
        return replace(info, anchored=False) if options["columns"] >= options["stride"] else info

    def check_options(self) -> None:
        if self.columns > self.stride:
            raise ConfigError(f"fixed_union needs columns <= stride, got columns={self.columns}, stride={self.stride}")

    def summaries(self) -> list[int]:
        """For each head the v of its summary."""
        return [head % (self.stride // self.columns) for head in range(self.heads.count)]

    def pairs(self) -> Pattern:
        """The block, or the summary of the head."""
        sets = (summary(self.stride, self.columns, v * self.columns) for v in self.summaries())
        return per_head(*(block(self.stride) | each for each in sets))

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """In the block of i, or in the summary of the head."""
        in_block = i - i % self.stride <= j
        from_end = (self.stride - 1 - j % self.stride) // self.columns  # the summary that j belongs to, 0 the last
        return torch.stack([in_block | (from_end == v) for v in self.summaries()])

    def kept_slots(self, length: int) -> int:
        """The current block, and the summary columns in use of those before."""
        blocks, inside = divmod(length, self.stride)
        return blocks * self.columns * len(set(self.summaries())) + inside
