"""Sparse Transformer's strided pattern in one head: the last positions and every l-th one before."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import strided, window


@final
class StridedUnion(Sparse):
    """Softmax over the union of both strided sets: the j <= i with i - j <= l or (i - j) mod l = 0.

    `stride` = l, about sqrt(length), or the width of an image. A1 = {j: i - l <= j <= i} has l + 1 keys, as in the
    paper (its public code has l); A2 = {j <= i: (i - j) mod l = 0}. `strided` is the same two sets apart.
    Cost: O(length (stride + length / stride) dim) time, which is O(length^1.5 dim) at l = sqrt(length); O(length)
    memory. What is lost: in one layer the far keys between the multiples of l; two layers reach every earlier position.
    State: every key and value, of which a step reads the last l + 1 and one in l.

    Args:
        heads: what to serve; causal.
        stride: past keys of the window, and distance between the far keys.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a stride below 1, an unknown `impl`.
        UnsupportedError: heads that are not causal, an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> StridedUnion(Heads(count=2, key_dim=8, causal=True), stride=16)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Child et al. 2019, sections 4.2 (strided) and 4.3 (merged head).
    """

    info = Info(
        title="Strided, in one head",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4},
        {"stride": 3, "impl": "torch"},
        {"stride": 1, "scale": 0.7},
        {"stride": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys; local_atrous is the same without a direction",
        "cross": "a distance needs queries and keys at the same positions",
    }

    def __init__(
        self,
        heads: Heads,
        *,
        stride: int = 128,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if stride < 1:
            raise ConfigError(f"strided_union needs stride >= 1, got {stride=}")
        super().__init__(heads, window(stride) | strided(stride), scale=scale, impl=impl)
        self.stride = stride

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """i - j <= l or (i - j) mod l = 0."""
        return ((i - j).abs() <= self.stride) | ((i - j) % self.stride == 0)
