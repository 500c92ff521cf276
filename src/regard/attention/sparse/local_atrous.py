"""Attention to a window of neighbours and to every r-th position."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern, strided
from regard.patterns import window as neighbours


@final
class LocalAtrous(Sparse):
    """Softmax over neighbours and one residue class: the j with |i - j| <= w or (i - j) mod r = 0.

    `window` = w, `dilation` = r; the source takes one number k for both. Causal: also j <= i.
    Cost: O(length (window + length / dilation) dim) time, O(length) memory. What is lost: in one layer the far keys
    between the multiples of r. With w >= r - 1 two layers connect every pair; not causal, and away from the ends,
    w >= (r - 1) / 2 is enough.
    State: every key and value, of which a step reads w and one in r.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 1, 12, 8)
        >>> seen = (weights(LocalAtrous(Heads(count=1, key_dim=8), window=3, dilation=4), q, q) > 0).double()
        >>> [bool((reached > 0).all()) for reached in (seen, seen @ seen)]  # two layers connect every pair
        [False, True]

    Source: Su 2019, From standard attention to sparse attention (local + atrous, "sparse self-attention").
    """

    default_info = Info(
        title="Local and atrous",
        source="Su 2019, From standard attention to sparse attention",
        supports=Supports.all(but=("cross", "marks")),
        time=2,
        state="length",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 2, "dilation": 4},
        {"window": 1, "dilation": 3},
        {"window": 0, "dilation": 2, "scale": 0.7},
        {"window": 3, "dilation": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a distance needs queries and keys at the same positions"}

    window: Annotated[int, Ge(0)] = 32
    """neighbours on either side; causal: past keys besides the query's own"""
    dilation: Annotated[int, Ge(1)] = 32
    """distance between the far keys of a query"""

    def pairs(self) -> Pattern:
        """The window or the residue class."""
        return neighbours(self.window) | strided(self.dilation)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| <= w or (i - j) mod r = 0."""
        distance = (i - j).abs()
        return (distance <= self.window) | (distance % self.dilation == 0)
