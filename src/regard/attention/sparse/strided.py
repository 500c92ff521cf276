"""Sparse Transformer's strided pattern: some heads see the last positions, others every l-th one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern, per_head, strided, window


@final
class Strided(Sparse):
    """Softmax over one of two sets: A1 = {j: i - l <= j <= i} or A2 = {j <= i: (i - j) mod l = 0}.

    `stride` = l, about sqrt(length), or the width of an image. A1 has l + 1 keys, as in the paper (its public code has
    l). The paper combines the sets in three ways: heads of either kind (`part="heads"`: even heads A1, odd heads A2;
    the best of the three there), layers of either kind (a layer with `part="window"`, the next with `part="stride"`),
    or both in every head (`strided_union`). A1 then A2, or A2 then A1, reach every earlier position.
    Cost: O(length (stride + length / stride) dim) time, which is O(length^1.5 dim) at l = sqrt(length); `part="window"`
    O(length stride dim); O(length) memory. What is lost: in one layer the far keys between the multiples of l.
    State: every key and value; `part="window"`: the last l.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 2, 9, 8)
        >>> seen = weights(Strided(Heads(count=2, key_dim=8, causal=True), stride=3), q, q) > 0
        >>> [seen[0, head, 8].nonzero().flatten().tolist() for head in (0, 1)]  # two kinds of heads
        [[5, 6, 7, 8], [2, 5, 8]]

    Source: Child et al. 2019, sections 4.2 (strided) and 4.3 (heads of either kind, interleaved layers).
    """

    default_info = Info(
        title="Strided",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=2,
        state="length",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4},
        {"stride": 3, "part": "stride"},
        {"stride": 5, "part": "window", "scale": 0.7},
        {"stride": 3, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys; local_atrous and atrous are like sets without a direction",
        "cross": "a distance needs queries and keys at the same positions",
    }

    stride: Annotated[int, Ge(1)] = 128
    """past keys of the window, and distance between the far keys"""
    part: Literal["heads", "window", "stride"] = "heads"
    """which heads see which set; a single head with `heads` has the window alone"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A window is linear in the length."""
        info = super().facts(options)
        return replace(info, time=1, state="window") if options["part"] == "window" else info

    def pairs(self) -> Pattern:
        """A1 for the even heads, A2 for the odd ones; or one of the two for all."""
        match self.part:
            case "heads":
                sets = window(self.stride), strided(self.stride)
                return per_head(*(sets[head % 2] for head in range(self.heads.count)))
            case "window":
                return window(self.stride)
            case "stride":
                return strided(self.stride)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """A1 for the even heads, A2 for the odd ones; or one of the two for all."""
        window, strided = i - j <= self.stride, (i - j) % self.stride == 0
        by_head = [window, strided] * self.heads.count
        return {"heads": torch.stack(by_head[: self.heads.count]), "window": window, "stride": strided}[self.part]

    def kept_slots(self, length: int) -> int:
        """The last l, where all heads see A1; a later query of A2 may see any."""
        windows = self.part == "window" or (self.part == "heads" and self.heads.count == 1)
        return min(length, self.stride) if windows else length
