"""Attention to every r-th position."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import strided


@final
class Atrous(Sparse):
    """Softmax over one residue class: o_i = sum_j softmax_j(scale q_i . k_j) v_j over the j with (i - j) mod r = 0.

    `dilation` = r (k in the source). Causal: also j <= i.
    Cost: O(length^2 dim / dilation) time, O(length) memory. What is lost: positions whose distance is no multiple of r
    never exchange anything, in any number of layers; `local_atrous` adds the neighbours that join the classes.
    State: every key and value, of which a step reads one in r.

    Args:
        heads: what to serve.
        dilation: distance between the keys of a query, at least 2.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a dilation below 2, an unknown `impl`.
        UnsupportedError: an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Atrous(Heads(count=2, key_dim=8, causal=True), dilation=10)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Su 2019, From standard attention to sparse attention (atrous self-attention).
    """

    info = Info(
        title="Atrous",
        source="Su 2019, From standard attention to sparse attention",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"dilation": 3},
        {"dilation": 2, "impl": "torch"},
        {"dilation": 6, "scale": 0.7},
        {"dilation": 3, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a distance needs queries and keys at the same positions"}

    def __init__(
        self,
        heads: Heads,
        *,
        dilation: int = 16,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if dilation < 2:
            raise ConfigError(f"atrous needs dilation >= 2, got {dilation=}; 1 would be every key, which is softmax")
        super().__init__(heads, strided(dilation), scale=scale, impl=impl)
        self.dilation = dilation

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """(i - j) mod r = 0."""
        return (i - j) % self.dilation == 0
