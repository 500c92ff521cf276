"""Relative positions in keys and values."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.dense import Dense, distances, random_weight, reference_weights
from regard.core.attention import Call, generator
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, publish, softmax


def score(q: Tensor, k: Tensor, distances: Tensor, key_table: Tensor, value_table: Tensor) -> Tensor:
    """q . (k + a^K), from one logit per query and row of the table: no tensor of queries x keys x dim."""
    del value_table
    most = key_table.shape[0] // 2
    by_row = q @ key_table.mT
    rows = (most - distances).clamp(0, 2 * most).expand(*q.shape[:2], -1, -1)
    # Not the outer rows too: the gradient of numbers that many keys read would be added up in any order on a GPU.
    near = by_row.gather(-1, rows)
    ends = torch.where(distances >= most, by_row[..., :1], by_row[..., -1:])
    return (q @ k.mT + torch.where(distances.abs() >= most, ends, near)) * q.shape[-1] ** -0.5


def average(weights: Tensor, v: Tensor, distances: Tensor, key_table: Tensor, value_table: Tensor) -> Tensor:
    """Weights times (v + a^V), from the total weight of each row of the table: one key's, or of an outer row many."""
    del key_table
    most, keys = value_table.shape[0] // 2, weights.shape[-1]
    keys_of_rows = distances[:, :1] + torch.arange(1 - most, most, device=weights.device)
    real = (keys_of_rows >= 0) & (keys_of_rows < keys)
    near = weights.gather(-1, keys_of_rows.clamp(0, keys - 1).expand(*weights.shape[:2], -1, -1))
    first, last = (
        torch.where(beyond, weights, 0.0).sum(-1, keepdim=True) for beyond in (distances >= most, distances <= -most)
    )
    return weights @ v + torch.cat([first, torch.where(real, near, 0.0), last], -1) @ value_table


RULE = publish("shaw", Rule(score, softmax, relative=True, average=average))


@final
class Shaw(Dense):
    """Softmax attention whose keys and values know how far away they are.

    z_ij = q_i . (k_j + a^K_ij) / sqrt(d), o_i = sum_j softmax_j(z_ij) (v_j + a^V_ij), a_ij = P[clip(j - i, -c, c) + c]:
    `key_table` and `value_table` are P^K and P^V, shared by the heads. Whatever is c or more away has one label, so
    that sequences longer than those trained on bring nothing new. (A survey writes P as a vector of 2 c + 1 numbers;
    its rows are vectors.) Causal, only the rows of j <= i are read.

    Cost: O(queries keys dim) time, O((2 c + 1) dim) further memory: the tables, and per query of a chunk 2 c + 1 logits
    and 2 c + 1 total weights. State: every key and value; distances are those of slots.

    Example:
        >>> from regard import Heads
        >>> mechanism = Shaw(Heads(count=1, key_dim=1), max_distance=1)
        >>> _ = mechanism.value_table.data.copy_(torch.tensor([[-5.0], [0.0], [5.0]]))  # key before, itself, after
        >>> x = torch.zeros(1, 1, 5, 1)
        >>> mechanism(x, x, x).values.round().int().flatten().tolist()  # keys after it, less those before
        [4, 2, 0, -2, -4]

    Source: Shaw, Uszkoreit, Vaswani 2018, equations 3 to 5. Initial tables are ours: normal, of variance 1 / width.
    """

    default_info = Info(
        title="Relative keys and values",
        source="Shaw et al. 2018, Eq. 3-5",
        supports=Supports.all(but=("cross", "bias", "marks")),
        state="length",
        rows_sum_to_one=False,
        linear_in_value=False,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"max_distance": 4}, {"max_distance": 1}, {})
    reasons: ClassVar[Mapping[str, str]] = {
        "cross": "the positions of two sequences have no distance",
        "bias": "its own tables say what a distance is worth; the position scheme shaw_keys is a bias",
    }

    max_distance: Annotated[int, Ge(1)] = 16
    """c; 16 as in the paper"""
    key_table: nn.Parameter = weight()
    value_table: nn.Parameter = weight()

    def setup(self) -> None:
        heads, rows, draw = self.heads, 2 * self.max_distance + 1, generator(self.heads.seed, "shaw")
        self.key_table = random_weight(draw, rows, heads.key_dim)
        self.value_table = random_weight(draw, rows, heads.value_width)
        self.rule = RULE

    def weights(self) -> list[Tensor]:
        """P^K and P^V."""
        return [self.key_table, self.value_table]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """A key and a value for every pair, (queries, keys, dim)."""
        k, v = (x.repeat_interleave(self.heads.group, 1)[:, :, None] for x in (k, v))
        label = self.max_distance - distances(q, k[:, :, 0], call).clamp(-self.max_distance, self.max_distance)
        logits = torch.einsum("bhid,bhijd->bhij", q, k + self.key_table[label]) / q.shape[-1] ** 0.5
        return torch.einsum("bhij,bhije->bhie", reference_weights(logits, call), v + self.value_table[label])
