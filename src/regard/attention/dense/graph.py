"""Graph attention's score."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.core import generator
from regard.engines.dense import Rule, publish, softmax
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports


@final
class Graph(Dense):
    """Softmax of the graph attention score: z_ij = LeakyReLU(a^T [q_i || k_j]) = LeakyReLU(a_1 . q_i + a_2 . k_j).

    `query` and `key` are the halves a_1 and a_2 of the paper's a; every query head has its own a_1, every key head its
    own a_2. The paper's W x_i and W x_j are the q_i and k_j of the layer's projections (the paper has one W for q, k
    and v). Its neighbourhood is what the masks and the bias leave visible.

    What is lost: LeakyReLU is monotone, so that every query ranks the keys alike ("static attention", Brody et al.
    2022): it cannot look a key up. `additive` can.

    Cost: O((queries + keys) dim + queries keys value) time; memory of one chunk of queries x keys. State: one number
    and one value per key.

    Args:
        heads: what to serve.
        slope: of LeakyReLU below 0.

    Raises:
        ConfigError: a slope outside [0, 1].

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> Graph(Heads(count=2, key_dim=8))(q, k, v).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Velickovic et al. 2018, Eq. 3.
    """

    info = Info(
        title="Graph attention",
        source="Velickovic et al. 2018, Graph Attention Networks, Eq. 3",
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

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"slope": 0.5})

    def __init__(self, heads: Heads, *, slope: float = 0.2) -> None:
        super().__init__(heads, slope=slope)
        if not 0 <= slope <= 1:
            raise ConfigError(f"graph needs a slope in [0, 1], got {slope}; the paper's is 0.2")
        self.slope, scale = slope, heads.key_dim**-0.5
        draw = generator(heads.seed, "graph")
        self.query = nn.Parameter(torch.randn(heads.count, heads.key_dim, generator=draw) * scale)
        self.key = nn.Parameter(torch.randn(heads.kv_heads, heads.key_dim, generator=draw) * scale)
        self.rule = publish(f"graph({slope!r})", Rule(lambda q, k: F.leaky_relu(q + k.mT, slope), softmax))

    @property
    def key_width(self) -> int:
        """One number, a_2 . k."""
        return 1

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """a_1 . q and a_2 . k: the score of a pair is a function of their sum."""
        return q @ self.query[:, :, None], k @ self.key[:, :, None]

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
        """Concatenate each query with each key, then a, then LeakyReLU, then the softmax of each row."""
        del marks
        group, (queries, keys) = self.heads.group, (q.shape[2], k.shape[2])
        k = k.repeat_interleave(group, 1)
        pairs = torch.cat(
            [q[:, :, :, None].expand(-1, -1, -1, keys, -1), k[:, :, None].expand(-1, -1, queries, -1, -1)], -1
        )
        a = torch.cat([self.query, self.key.repeat_interleave(group, 0)], -1)
        sums = torch.einsum("bhijd,hd->bhij", pairs, a)
        logits = torch.where(sums > 0, sums, self.slope * sums)
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
