"""Attention to a window of neighbours and to every r-th position."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import strided
from regard.patterns import window as neighbours


@final
class LocalAtrous(Sparse):
    """Softmax over neighbours and one residue class: the j with |i - j| <= w or (i - j) mod r = 0.

    `window` = w, `dilation` = r; the source takes one number k for both. Causal: also j <= i.
    Cost: O(length (window + length / dilation) dim) time, O(length) memory. What is lost: in one layer the far keys
    between the multiples of r. With w >= r - 1 two layers connect every pair; not causal, and away from the ends,
    w >= (r - 1) / 2 is enough.
    State: every key and value, of which a step reads w and one in r.

    Args:
        heads: what to serve.
        window: neighbours on either side; causal: past keys besides the query's own.
        dilation: distance between the far keys of a query.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a negative window, a dilation below 1, an unknown `impl`.
        UnsupportedError: an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> LocalAtrous(Heads(count=2, key_dim=8, causal=True), window=10, dilation=10)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Su 2019, From standard attention to sparse attention (local + atrous, "sparse self-attention").
    """

    info = Info(
        title="Local and atrous",
        source="Su 2019, From standard attention to sparse attention",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 2, "dilation": 4},
        {"window": 1, "dilation": 3, "impl": "torch"},
        {"window": 0, "dilation": 2, "scale": 0.7},
        {"window": 3, "dilation": 5, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a distance needs queries and keys at the same positions"}

    def __init__(
        self,
        heads: Heads,
        *,
        window: int = 32,
        dilation: int = 32,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if window < 0 or dilation < 1:
            raise ConfigError(f"local_atrous needs window >= 0 and dilation >= 1, got {window=}, {dilation=}")
        super().__init__(heads, neighbours(window) | strided(dilation), scale=scale, impl=impl)
        self.window, self.dilation = window, dilation

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| <= w or (i - j) mod r = 0."""
        distance = (i - j).abs()
        return (distance <= self.window) | (distance % self.dilation == 0)
