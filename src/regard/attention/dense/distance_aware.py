"""Softmax whose logits are rescaled by a learnt function of the distance."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.dense import Dense, distances, inner_products, reference_softmax
from regard.core.attention import Call, generator
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, publish, softmax


def score(q: Tensor, k: Tensor, distances: Tensor, slope: Tensor, ceiling: Tensor) -> Tensor:
    """relu(q . k) f(w |i - j|) / sqrt(d)."""
    beta = ceiling[:, None, None]
    near = slope[:, None, None] * distances.abs()
    # (1 + e^beta) / (1 + e^(beta - R)): where that exponential overflows its gradient is inf / inf
    factor = torch.exp(F.softplus(beta) - F.softplus(beta - near))
    return torch.relu(q @ k.mT) * factor * q.shape[-1] ** -0.5


RULE = publish("distance_aware", Rule(score, softmax, relative=True))


@final
class DistanceAware(Dense):
    """Softmax of relu(q_i . k_j) f_h(w_h |i - j|) / sqrt(d), f(R) = (1 + exp(beta)) / (1 + exp(beta - R)).

    `slope` is w and `ceiling` is beta, one number each per head. f(0) = 1; w > 0 favours far keys, where f rises to its
    bound 1 + exp(beta), and w < 0 near ones, f falling to 0. A logit is never negative, so f strengthens or fades a
    match and cannot turn it; where nothing matches, the weights are equal.

    Cost: O(queries keys dim) time, O(queries keys) of it for f; O(heads) further memory. (A survey swaps the two.)
    State: every key and value; distances are those of slots.

    Example:
        >>> from regard import Heads
        >>> mechanism = DistanceAware(Heads(count=1, key_dim=1))
        >>> _ = torch.nn.init.constant_(mechanism.slope, -10.0)  # logits of other positions fade to 0
        >>> q = torch.tensor([0.0, 100.0]).reshape(1, 1, 2, 1)
        >>> mechanism(q, q, q).values.detach().flatten()
        tensor([ 50., 100.])

    Source: Wu, Wu, Huang 2021 (DA-Transformer), section 3. It states no initial values: here w is normal with standard
    deviation 0.1, so that heads begin apart, and beta is 0, where f is at most 2.
    """

    default_info = Info(
        title="Distance-aware",
        source="Wu, Wu, Huang 2021, section 3",
        supports=Supports.all(but=("cross", "bias", "marks")),
        state="length",
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "cross": "the positions of two sequences have no distance",
        "bias": "it rescales logits by distance instead of adding to them",
    }

    slope: nn.Parameter = weight()
    ceiling: nn.Parameter = weight()

    def setup(self) -> None:
        draw = generator(self.heads.seed, "distance_aware")
        self.slope = nn.Parameter(0.1 * torch.randn(self.heads.count, generator=draw))
        self.ceiling = nn.Parameter(torch.zeros(self.heads.count))
        self.rule = RULE

    def weights(self) -> list[Tensor]:
        """w and beta."""
        return [self.slope, self.ceiling]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit times f as published, then the softmax of each row."""
        apart = distances(q, k, call).abs().to(self.slope.dtype)
        beta = self.ceiling[:, None, None]
        factor = (1 + torch.exp(beta)) * torch.sigmoid(torch.einsum("h,ij->hij", self.slope, apart) - beta)
        return reference_softmax(inner_products(q, k).clamp(min=0) * factor / q.shape[-1] ** 0.5, v, call)
