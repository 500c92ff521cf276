"""Sparse Transformer's strided pattern in one head: the last positions and every l-th one before."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern, strided, window


@final
class StridedUnion(Sparse):
    """Softmax over the union of both strided sets: the j <= i with i - j <= l or (i - j) mod l = 0.

    `stride` = l, about sqrt(length), or the width of an image. A1 = {j: i - l <= j <= i} has l + 1 keys, as in the
    paper (its public code has l); A2 = {j <= i: (i - j) mod l = 0}. `strided` is the same two sets apart.
    Cost: O(length (stride + length / stride) dim) time, which is O(length^1.5 dim) at l = sqrt(length); O(length)
    memory. What is lost: in one layer the far keys between the multiples of l; two layers reach every earlier position.
    State: every key and value, of which a step reads the last l + 1 and one in l.

    Example:
        >>> import torch
        >>> from regard import attend
        >>> q, k, v = torch.randn(3, 1, 1, 20, 8)
        >>> union = attend(q, k, v, "strided_union(stride=4)", causal=True)
        >>> pattern = attend(q, k, v, "pattern(rule='window(4) | strided(4)')", causal=True)
        >>> torch.allclose(union, pattern, atol=1e-6)
        True

    Source: Child et al. 2019, sections 4.2 (strided) and 4.3 (merged head).
    """

    default_info = Info(
        title="Strided, in one head",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=2,
        state="length",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4},
        {"stride": 3},
        {"stride": 1, "scale": 0.7},
        {"stride": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys; local_atrous is the same without a direction",
        "cross": "a distance needs queries and keys at the same positions",
    }

    stride: Annotated[int, Ge(1)] = 128
    """past keys of the window, and distance between the far keys"""

    def pairs(self) -> Pattern:
        """The union of both sets."""
        return window(self.stride) | strided(self.stride)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """i - j <= l or (i - j) mod l = 0."""
        return ((i - j).abs() <= self.stride) | ((i - j) % self.stride == 0)
