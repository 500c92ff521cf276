"""Attention to a window of neighbours."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern, dilated
from regard.patterns import window as neighbours


@final
class Local(Sparse):
    """Softmax over a window: o_i = sum_j softmax_j(scale q_i . k_j) v_j, |i - j| <= w; causal: i - w <= j <= i.

    `window` = w. `dilation` = r widens it without more keys: |i - j| in {0, r, 2r, ..., wr}.
    Cost: O(length window dim) time, O(length) memory; 64 x 64 tiles, so a dilated window is walked like one r times as
    wide. What is lost: after L layers a position has seen L w r positions on either side, nothing further.
    State: a ring of the last w r keys and values, which is what later queries can still see.

    Example:
        >>> import torch
        >>> from regard import attend
        >>> q, k, v = torch.randn(3, 1, 1, 8, 4)
        >>> other = torch.cat([v[:, :, :1] + 1, v[:, :, 1:]], 2)
        >>> before, after = (attend(q, k, x, "local(window=2)", causal=True) for x in (v, other))
        >>> (before != after).any(-1).nonzero()[:, 2].tolist()  # whom the first value reaches
        [0, 1, 2]

    Source: Child et al. 2019, section 4; dilation: Beltagy et al. 2020, section 3.1.
    """

    default_info = Info(
        title="Local window",
        source="Child et al. 2019, section 4; Beltagy et al. 2020, section 3.1 (dilation)",
        supports=Supports.all(but=("cross", "marks")),
        time=1,
        state="window",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3},
        {"window": 2, "dilation": 3},
        {"window": 9, "scale": 0.7},
        {"window": 4, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a window needs queries and keys at the same positions"}

    window: Annotated[int, Ge(0)] = 128
    """keys on either side; causal: past keys besides the query's own"""
    dilation: Annotated[int, Ge(1)] = 1
    """distance between the keys of the window"""

    def pairs(self) -> Pattern:
        """The window, in steps of the dilation."""
        return neighbours(self.window) if self.dilation == 1 else dilated(self.window, self.dilation)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| in {0, r, ..., wr}."""
        distance = (i - j).abs()
        return (distance % self.dilation == 0) & (distance // self.dilation <= self.window)

    def kept_slots(self, length: int) -> int:
        """Causal: the last w r."""
        return min(length, self.window * self.dilation) if self.heads.causal else length
