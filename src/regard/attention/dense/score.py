"""The user's own score."""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.core.attention import Call
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, functional, imported, publish, require_pairwise, softmax


def scaled_dot_product(q: Tensor, k: Tensor) -> Tensor:
    """q_i . k_j / sqrt(d)."""
    return (q * q.shape[-1] ** -0.5) @ k.mT


def negative_distance(q: Tensor, k: Tensor) -> Tensor:
    """-|q_i - k_j|."""
    return -torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")


@final
class Score(Dense):
    """Softmax of any score: z_ij = f(q_i, k_j), o_i = sum_j softmax_j(z_ij) v_j.

    f takes a block of queries (batch, heads, queries, dim) and a block of keys (batch, heads, keys, dim) and returns
    their logits (batch, heads, queries, keys). It is called on blocks of any size, in at least float32, so that it must
    score every pair by itself: building the mechanism tries it and refuses a function that mixes pairs, rows of the
    batch, or random numbers into a score. Scores with weights are modules.

    Cost: that of f on every pair; memory of one chunk of queries x keys x `depth`. State: every key and value.

    Raises:
        ConfigError: f cannot be imported or called, returns another shape, mixes pairs, needs gradients of tensors that
            are no parameters of a module, or is a module with buffers.

    Example:
        >>> from regard import Heads, build
        >>> def negative_manhattan(q, k):
        ...     return -9 * (q[:, :, :, None] - k[:, :, None]).abs().sum(-1)
        >>> mechanism = build("score", Heads(count=1, key_dim=1), function=negative_manhattan)
        >>> q, k, v = torch.tensor([[1.0, 4.0, 9.0], [9.0, 0.0, 5.0], [10.0, 20.0, 30.0]]).reshape(3, 1, 1, 3, 1)
        >>> mechanism(q, k, v).values.round().flatten()  # the value of the nearest key
        tensor([20., 30., 10.])

    Source: Luong et al. 2015, section 3.1: attention is a choice of score.
    """

    default_info = Info(
        title="Any score",
        source="Luong et al. 2015, section 3.1, score(h_t, h_s)",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"function": "regard.attention.dense.score:negative_distance", "depth": 2},
    )

    function: str | Callable[[Tensor, Tensor], Tensor] = "regard.attention.dense.score:scaled_dot_product"
    """f: `module:name` of a function, or a function, or a `torch.nn.Module` whose parameters (no buffers) are trained
    along"""
    depth: Annotated[int, Ge(1)] = 1
    """numbers that f makes per pair, which decides how many queries a chunk has"""

    def setup(self) -> None:
        score = functional(self.function) if isinstance(self.function, nn.Module) else self.called
        require_pairwise(score, self.label, self.weights(), self.heads.count, self.heads.key_dim)
        # The rule keeps the function alive, so that its id names it.
        self.rule = publish(f"score({self.label}, {id(score)}, {self.depth})", Rule(score, softmax, depth=self.depth))

    @property
    def called(self) -> Callable[..., Tensor]:
        """f itself."""
        return imported(self.function) if isinstance(self.function, str) else self.function

    @property
    def label(self) -> str:
        """The function's name, for messages."""
        if isinstance(self.function, str):
            return self.function
        return getattr(self.function, "__name__", type(self.function).__name__)

    def weights(self) -> list[Tensor]:
        """The parameters of a module."""
        return list(self.function.parameters()) if isinstance(self.function, nn.Module) else []

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The function on one query at a time, then the softmax of each row."""
        k, function = k.repeat_interleave(self.heads.group, 1), self.called
        rows = [q.new_empty(*q.shape[:2], 0, k.shape[2]), *(function(q[:, :, [i]], k) for i in range(q.shape[2]))]
        return reference_softmax(torch.cat(rows, 2), v, call)
