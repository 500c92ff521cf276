"""Bilinear attention."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.core import options
from regard.core.attention import Attended, Call, generator
from regard.core.info import Info, Supports


@final
class Bilinear(Dense):
    """Softmax of a bilinear form: z_ij = q_i^T W k_j, without a scale (Luong's "general" score).

    `weight` is W, one per query head. It starts random, with logits of variance 1 on vectors of unit variance. Queries
    and keys may have different widths.

    Cost: as `softmax`, and O(queries query_dim key_dim). State: every key and value.

    Example:
        >>> from regard import Heads, weights
        >>> mechanism = Bilinear(Heads(count=1, key_dim=3))
        >>> _ = mechanism.weight.data.copy_(9 * torch.eye(3).roll(1, 1))
        >>> x = torch.eye(3).reshape(1, 1, 3, 3)
        >>> weights(mechanism, x, x).argmax(-1).flatten().tolist()  # W says which key answers which query
        [1, 2, 0]

    Source: Luong et al. 2015, section 3.1, score "general".
    """

    default_info = Info(
        title="Bilinear",
        source="Luong et al. 2015, section 3.1, general",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
        mergeable=True,
    )
    compares_widths: ClassVar[bool] = True

    weight: nn.Parameter = options.weight()

    def setup(self) -> None:
        heads = self.heads
        drawn = torch.randn(heads.count, heads.query_width, heads.key_dim, generator=generator(heads.seed, "bilinear"))
        self.weight = nn.Parameter(drawn * (heads.query_width * heads.key_dim) ** -0.5)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q^T W, and the keys as they are."""
        return q @ self.weight.to(q.dtype), k

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The softmax of the inner products of q^T W and k."""
        return self.dot_product(q, k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The sum over both widths of every pair, then the softmax of each row."""
        logits = torch.einsum("bhid,hde,bhje->bhij", q, self.weight, k.repeat_interleave(self.heads.group, 1))
        return reference_softmax(logits, v, call)
