"""Additive attention."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.core import generator
from regard.engines.dense import Rule, publish, softmax
from regard.info import Heads, Info, Supports


def score(q: Tensor, k: Tensor, combine: Tensor) -> Tensor:
    """w_v . tanh(projected q + projected k)."""
    return torch.einsum("bhije,he->bhij", torch.tanh(q[:, :, :, None] + k[:, :, None]), combine)


@final
class Additive(Dense):
    """Softmax of a small network on each pair: z_ij = w_v^T tanh(W_q q_i + W_k k_j), no biases, no scale.

    `query`, `key` and `combine` are W_q, W_k and w_v; every query head has its own W_q and w_v, every key head its own
    W_k. Queries and keys may have different widths.

    Cost: O(queries keys hidden) time; memory of one chunk of queries x keys x hidden. State: every W_k k and value.

    Args:
        heads: what to serve.
        hidden: width of the network; None: key_dim.

    Example:
        >>> from regard import Heads
        >>> mechanism = Additive(Heads(count=2, key_dim=8, query_dim=6), hidden=4)
        >>> mechanism(torch.randn(1, 2, 3, 6), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)).values.shape
        torch.Size([1, 2, 3, 8])

    Source: Bahdanau et al. 2015, appendix A.1.2.
    """

    info = Info(
        title="Additive",
        source="Bahdanau et al. 2015, appendix A.1.2",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        state="length",
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"hidden": 5})
    compares_widths: ClassVar[bool] = True

    def __init__(self, heads: Heads, *, hidden: int | None = None) -> None:
        super().__init__(heads, hidden=hidden)
        self.hidden = hidden
        width = self.width = heads.key_dim if hidden is None else hidden
        draw = generator(heads.seed, "additive")

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=draw) * shape[-1] ** -0.5)

        self.query = normal(heads.count, width, heads.query_width)
        self.key = normal(heads.kv_heads, width, heads.key_dim)
        self.combine = normal(heads.count, width)
        self.rule = publish(f"additive({width})", Rule(score, softmax, depth=width))

    @property
    def key_width(self) -> int:
        """Width of W_k k."""
        return self.width

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """W_q q and W_k k."""
        return q @ self.query.mT, k @ self.key.mT

    def weights(self) -> list[Tensor]:
        """w_v."""
        return [self.combine]

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Concatenate each query with each key, then the network, then the softmax of each row."""
        del marks
        group, (queries, keys) = self.heads.group, (q.shape[2], k.shape[2])
        k = k.repeat_interleave(group, 1)
        pairs = torch.cat(
            [q[:, :, :, None].expand(-1, -1, -1, keys, -1), k[:, :, None].expand(-1, -1, queries, -1, -1)], -1
        )
        network = torch.cat([self.query, self.key.repeat_interleave(group, 0)], -1)
        logits = (torch.tanh(torch.einsum("bhijd,hed->bhije", pairs, network)) * self.combine[:, None, None]).sum(-1)
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
