"""Sparse Transformer's fixed pattern: some heads see their block, others the summary columns of all blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.patterns import Pattern, block, per_head, summary


@final
class Fixed(Sparse):
    """Softmax over one of two sets: A1 = {j <= i: floor(j / l) = floor(i / l)} or A2 = {j <= i: j mod l >= l - c}.

    `stride` = l, `columns` = c: the last c positions of every l are its summary. Different heads have different ones:
    the head of number s among those that see summaries takes the c columns before those of number s - 1, around the
    block, so A2 = {j <= i: l - c (v + 1) <= j mod l < l - c v} with v = s mod floor(l / c). The paper combines the sets
    in three ways: heads of either kind (`part="heads"`: even heads A1, odd heads A2; the best of the three there),
    layers of either kind (a layer with `part="block"`, the next with `part="summary"`, in this order), or both in every
    head (`fixed_union`). A1 and then A2, with residuals, reach every earlier position; A2 and then A1 do not.
    Cost: O(length (stride + length columns / stride) dim) time; `part="block"`: O(length stride dim); O(length) memory.
    What is lost: far keys outside the columns, but through a layer before. A head of summaries has no key in the first
    positions and returns 0 there.
    State: the current block and the summary columns of all blocks, length c / l slots for each v in use.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 2, 10, 1), torch.arange(10.0).expand(1, 2, 10)[..., None]
        >>> mechanism = Fixed(Heads(count=2, key_dim=1, causal=True), stride=4, columns=1)
        >>> mechanism(q, q, v).values[0, 1, :, 0].round().tolist()  # means of summaries, 3 and 7; 0 before there is one
        [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0, 5.0]

    Source: Child et al. 2019, sections 4.2 (fixed; distinct columns for heads) and 4.3 (combining).
    """

    default_info = Info(
        title="Fixed",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=2,
        state="length",
        rows_sum_to_one=False,
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4, "columns": 2},
        {"stride": 4, "columns": 2, "part": "summary"},
        {"stride": 5, "part": "block", "columns": 1, "scale": 0.7},
        {"stride": 3, "columns": 1, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys",
        "cross": "blocks need queries and keys at the same positions",
    }

    stride: Annotated[int, Ge(1)] = 128
    """positions in a block; the paper takes 128 or 256"""
    columns: Annotated[int, Ge(1)] = 8
    """summary positions of a block for each head, at most stride; the paper takes 8, 16 or 32"""
    part: Literal["heads", "block", "summary"] = "heads"
    """which heads see which set; a single head with `heads` has the blocks alone"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Blocks are linear in the length, and every query has a key."""
        info = super().facts(options)
        if options["part"] != "block":
            return info
        return replace(info, rows_sum_to_one=True, time=1, state="window")

    def check_options(self) -> None:
        if self.columns > self.stride:
            raise ConfigError(f"fixed needs columns <= stride, got columns={self.columns}, stride={self.stride}")

    def summaries(self) -> list[int | None]:
        """For each head the v of its summary, None where it sees its block."""
        around = self.stride // self.columns
        match self.part:
            case "heads":
                return [head // 2 % around if head % 2 else None for head in range(self.heads.count)]
            case "block":
                return [None] * self.heads.count
            case "summary":
                return [head % around for head in range(self.heads.count)]

    def pairs(self) -> Pattern:
        """A1 or A2 for each head."""
        if self.part == "block":
            return block(self.stride)
        sets = (
            block(self.stride) if v is None else summary(self.stride, self.columns, v * self.columns)
            for v in self.summaries()
        )
        return per_head(*sets)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """A1 or A2 for each head."""
        in_block = i - i % self.stride <= j
        from_end = (self.stride - 1 - j % self.stride) // self.columns  # the summary that j belongs to, 0 the last
        return torch.stack(
            [in_block if v is None else (from_end == v).expand(in_block.shape) for v in self.summaries()]
        )

    def kept_slots(self, length: int) -> int:
        """The current block where a head sees it, and the summary columns in use."""
        blocks, inside = divmod(length, self.stride)
        seen = set(self.summaries())
        columns = self.columns * len(seen - {None})
        return blocks * columns + (inside if None in seen else max(inside - (self.stride - columns), 0))
