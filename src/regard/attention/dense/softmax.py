"""Scaled dot-product attention."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from regard.attention.dense import Scaled, inner_products, reference_softmax
from regard.core.attention import Attended, Call
from regard.core.info import Info, Supports


@final
class Softmax(Scaled):
    """Softmax of scaled dot products: o_i = sum_j softmax_j(scale q_i . k_j) v_j, scale = 1/sqrt(d).

    Cost: O(queries keys dim) time, O(length) memory: above 2^20 pairs the weights never exist as one tensor, unless the
    bias does. State: every key and value.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.tensor([0.0, 99.0]).reshape(1, 1, 2, 1)
        >>> k, v = (torch.tensor(x).reshape(1, 1, 3, 1) for x in ([-1.0, 0.0, 1.0], [1.0, 2.0, 6.0]))
        >>> Softmax(Heads(count=1, key_dim=1))(q, k, v).values.round().flatten()  # the mean, and the best key's value
        tensor([3., 6.])

    Source: Vaswani et al. 2017, Eq. 1.
    """

    default_info = Info(
        title="Scaled dot-product",
        source="Vaswani et al. 2017, Eq. 1",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
        mergeable=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"scale": 0.7}, {"scale": 0.3})

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """By the fastest path that keeps memory linear; the log-sum-exp by the tile engine."""
        return self.dot_product(q, k, v, call, scale=self.factor)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit, then the softmax of each row."""
        return reference_softmax(self.factor * inner_products(q, k), v, call)
