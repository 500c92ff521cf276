"""Sparse Transformer's fixed pattern: some heads see their block, others the summary columns of all blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import block, per_head, summary


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

    Args:
        heads: what to serve; causal. A single head with `part="heads"` has the blocks alone.
        stride: positions in a block; the paper takes 128 or 256.
        columns: summary positions of a block for each head; the paper takes 8, 16 or 32.
        part: which heads see which set.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: columns that are not from 1 to stride, an unknown `part` or `impl`.
        UnsupportedError: heads that are not causal, an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Fixed(Heads(count=2, key_dim=8, causal=True), stride=16, columns=4)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Child et al. 2019, sections 4.2 (fixed; distinct columns for heads) and 4.3 (combining).
    """

    info = Info(
        title="Fixed",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
        rows_sum_to_one=False,
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4, "columns": 2},
        {"stride": 4, "columns": 2, "part": "summary", "impl": "torch"},
        {"stride": 5, "part": "block", "columns": 1, "scale": 0.7},
        {"stride": 3, "columns": 1, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys",
        "cross": "blocks need queries and keys at the same positions",
    }

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Blocks are linear in the length, and every query has a key."""
        info = super().facts(**options)
        if options.get("part") != "block":
            return info
        info = replace(info, rows_sum_to_one=True)
        return replace(info, time=1, state="window") if info.supports.state else info

    def __init__(
        self,
        heads: Heads,
        *,
        stride: int = 128,
        columns: int = 8,
        part: Literal["heads", "block", "summary"] = "heads",
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if not 1 <= columns <= stride:
            raise ConfigError(f"fixed needs 1 <= columns <= stride, got {stride=}, {columns=}")
        around = stride // columns
        match part:
            case "heads":
                pattern = per_head(
                    *(
                        summary(stride, columns, h // 2 % around * columns) if h % 2 else block(stride)
                        for h in range(heads.count)
                    )
                )
            case "block":
                pattern = block(stride)
            case "summary":
                pattern = per_head(*(summary(stride, columns, h % around * columns) for h in range(heads.count)))
            case _:
                raise ConfigError(f"fixed has no part={part!r}; it has heads, block, summary")
        super().__init__(heads, pattern, scale=scale, impl=impl, part=part)
        self.stride, self.columns, self.part = stride, columns, part

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """A1 or A2 for each head."""
        own = i - i % self.stride <= j
        from_end = (self.stride - 1 - j % self.stride) // self.columns  # the summary that j belongs to, 0 the last
        around = self.stride // self.columns
        sets = []
        for head in range(self.heads.count):
            number = head // 2 if self.part == "heads" else head
            is_block = self.part == "block" or (self.part == "heads" and head % 2 == 0)
            sets.append(own if is_block else (from_end == number % around).expand(own.shape))
        return torch.stack(sets)
