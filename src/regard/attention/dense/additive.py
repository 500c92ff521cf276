"""Additive attention."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.dense import Dense, concatenated_pairs, random_weight, reference_softmax
from regard.core.attention import Call, generator
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, publish, softmax


def score(q: Tensor, k: Tensor, combine: Tensor) -> Tensor:
    """w_v . tanh(projected q + projected k)."""
    return torch.einsum("bhije,he->bhij", torch.tanh(q[:, :, :, None] + k[:, :, None]), combine)


@final
class Additive(Dense):
    """Softmax of a small network on each pair: z_ij = w_v^T tanh(W_q q_i + W_k k_j), no biases, no scale.

    `query`, `key` and `combine` are W_q, W_k and w_v; every query head has its own W_q and w_v, every key head its own
    W_k. Queries and keys may have different widths.

    Cost: O(queries keys hidden) time; memory of one chunk of queries x keys x hidden. State: every W_k k and value.

    Example:
        >>> from regard import Heads, weights
        >>> mechanism = Additive(Heads(count=1, key_dim=1), hidden=1)
        >>> _ = [torch.nn.init.ones_(weight) for weight in mechanism.parameters()]
        >>> q, k = torch.zeros(1, 1, 1, 1), torch.tensor([-1e6, 1e3, 1e6]).reshape(1, 1, 3, 1)
        >>> weights(mechanism, q, k).log().diff().round().flatten()  # tanh bounds the logits: -1, 1, 1
        tensor([2., 0.])

    Source: Bahdanau et al. 2015, appendix A.1.2.
    """

    default_info = Info(
        title="Additive",
        source="Bahdanau et al. 2015, appendix A.1.2",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"hidden": 5})
    compares_widths: ClassVar[bool] = True

    hidden: Annotated[int, Ge(1)] | None = None
    """width of the network; None: key_dim"""
    query: nn.Parameter = weight()
    key: nn.Parameter = weight()
    combine: nn.Parameter = weight()

    def setup(self) -> None:
        heads, width = self.heads, self.key_width
        draw = generator(heads.seed, "additive")
        self.query = random_weight(draw, heads.count, width, heads.query_width)
        self.key = random_weight(draw, heads.kv_heads, width, heads.key_dim)
        self.combine = random_weight(draw, heads.count, width)
        self.rule = publish(f"additive({width})", Rule(score, softmax, depth=width))

    @property
    def key_width(self) -> int:
        """Width of W_k k."""
        return self.heads.key_dim if self.hidden is None else self.hidden

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """W_q q and W_k k."""
        return q @ self.query.mT.to(q.dtype), k @ self.key.mT.to(k.dtype)

    def weights(self) -> list[Tensor]:
        """w_v."""
        return [self.combine]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Concatenate each query with each key, then the network, then the softmax of each row."""
        network = torch.cat([self.query, self.key.repeat_interleave(self.heads.group, 0)], -1)
        hidden = torch.tanh(torch.einsum("bhijd,hed->bhije", concatenated_pairs(q, k), network))
        return reference_softmax((hidden * self.combine[:, None, None]).sum(-1), v, call)
