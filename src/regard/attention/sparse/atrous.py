"""Attention to every r-th position."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.info import Info, Supports
from regard.patterns import Pattern, strided


@final
class Atrous(Sparse):
    """Softmax over one residue class: o_i = sum_j softmax_j(scale q_i . k_j) v_j over the j with (i - j) mod r = 0.

    `dilation` = r (k in the source). Causal: also j <= i.
    Cost: O(length^2 dim / dilation) time, O(length) memory. What is lost: positions whose distance is no multiple of r
    never exchange anything, in any number of layers; `local_atrous` adds the neighbours that join the classes.
    State: every key and value, of which a step reads one in r.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> q = torch.zeros(1, 1, 10, 8)
        >>> row = weights(Atrous(Heads(count=1, key_dim=8, causal=True), dilation=3), q, q)[0, 0, 9]
        >>> row.nonzero().flatten().tolist()
        [0, 3, 6, 9]

    Source: Su 2019, From standard attention to sparse attention (atrous self-attention).
    """

    default_info = Info(
        title="Atrous",
        source="Su 2019, From standard attention to sparse attention",
        supports=Supports.all(but=("cross", "marks")),
        time=2,
        state="length",
        mergeable=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"dilation": 3},
        {"dilation": 2},
        {"dilation": 6, "scale": 0.7},
        {"dilation": 3, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a distance needs queries and keys at the same positions"}

    dilation: Annotated[int, Ge(2)] = 16
    """distance between the keys of a query; 1 would be every key, which is softmax"""

    def pairs(self) -> Pattern:
        """The residue class of the query."""
        return strided(self.dilation)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """(i - j) mod r = 0."""
        return (i - j) % self.dilation == 0
