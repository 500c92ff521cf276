"""Graph attention's score."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor, nn

from regard.attention.dense import Dense, concatenated_pairs, random_weight, reference_softmax
from regard.core import Call, generator
from regard.engines.dense import Rule, publish, softmax
from regard.info import Info, Supports
from regard.options import weight


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

    Example:
        >>> from regard import Heads, weights
        >>> x = torch.eye(4).reshape(1, 1, 4, 4)
        >>> found = weights(Graph(Heads(count=1, key_dim=4)), x, x).argmax(-1)
        >>> found.unique().numel()  # every query equals another key, and all like the same one best
        1

    Source: Velickovic et al. 2018, Eq. 3.
    """

    default_info = Info(
        title="Graph attention",
        source="Velickovic et al. 2018, Graph Attention Networks, Eq. 3",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"slope": 0.5})

    slope: Annotated[float, Ge(0), Le(1)] = 0.2
    """of LeakyReLU below 0; 0.2 is the paper's"""
    query: nn.Parameter = weight()
    key: nn.Parameter = weight()

    def setup(self) -> None:
        heads, slope, draw = self.heads, self.slope, generator(self.heads.seed, "graph")
        self.query = random_weight(draw, heads.count, heads.key_dim)
        self.key = random_weight(draw, heads.kv_heads, heads.key_dim)
        self.rule = publish(f"graph({slope!r})", Rule(lambda q, k: F.leaky_relu(q + k.mT, slope), softmax))

    @property
    def key_width(self) -> int:
        """One number, a_2 . k."""
        return 1

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """a_1 . q and a_2 . k: the score of a pair is a function of their sum."""
        return q @ self.query[:, :, None], k @ self.key[:, :, None]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Concatenate each query with each key, then a, then LeakyReLU, then the softmax of each row."""
        a = torch.cat([self.query, self.key.repeat_interleave(self.heads.group, 0)], -1)
        sums = torch.einsum("bhijd,hd->bhij", concatenated_pairs(q, k), a)
        return reference_softmax(torch.where(sums > 0, sums, self.slope * sums), v, call)
