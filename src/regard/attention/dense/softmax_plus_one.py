"""Softmax that may attend to nothing."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.attention.dense import Scaled, inner_products, reference_softmax
from regard.core.attention import Attended, Call
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, dot_product_with_nulls, publish, softmax


@final
class SoftmaxPlusOne(Scaled):
    """Softmax with more below the line: p_ij = exp(z_ij) / (num_null + sum_r exp(z_ir)), z_ij = q_i . k_j / sqrt(d).

    The weights of a row sum to less than 1, so that a head may say nothing. It equals a softmax over `num_null` more
    keys of logit 0 and value 0. A bias is added to real keys only.

    Cost: as `softmax`. State: every key and value; the null keys are no slots.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 3, 8), torch.ones(1, 1, 3, 8)
        >>> SoftmaxPlusOne(Heads(count=1, key_dim=8))(q, q, v).values[0, 0, 0, 0]
        tensor(0.7500)

    Source: Miller 2023, "Attention is off by one".
    """

    default_info = Info(
        title="Softmax plus one",
        source="Miller 2023, Attention is off by one",
        supports=Supports.all(but=("marks",)),
        state="length",
        rows_sum_to_one=False,
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"num_null": 3, "scale": 0.5})

    num_null: Annotated[int, Ge(1)] = 1
    """the null keys; 1 is the source's form, and none is `softmax`"""

    def setup(self) -> None:
        num_null, factor = self.num_null, self.factor
        self.rule = publish(
            f"softmax_plus_one({num_null}, {factor!r})",
            Rule(lambda q, k: (q * factor) @ k.mT, lambda logits: softmax(logits, num_null)),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """By the fastest path that keeps memory linear; dropout needs the weights."""
        if self.dropped or not k.shape[2]:
            return super().average(q, k, v, call)
        values = dot_product_with_nulls(q, k, v, call, scale=self.factor, nulls=self.num_null)
        return Attended(values, call.state)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit, then exp(z) over num_null plus their sum."""
        return reference_softmax(self.factor * inner_products(q, k), v, call, nulls=float(self.num_null))
