"""Attention to a window of neighbours."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import dilated
from regard.patterns import window as neighbours


@final
class Local(Sparse):
    """Softmax over a window: o_i = sum_j softmax_j(scale q_i . k_j) v_j, |i - j| <= w; causal: i - w <= j <= i.

    `window` = w. `dilation` = r widens it without more keys: |i - j| in {0, r, 2r, ..., wr}.
    Cost: O(length window dim) time, O(length) memory; 64 x 64 tiles, so a dilated window is walked like one r times as
    wide. What is lost: after L layers a position has seen L w r positions on either side, nothing further.
    State: a ring of the last w r keys and values, which is what later queries can still see.

    Args:
        heads: what to serve.
        window: keys on either side; causal: past keys besides the query's own.
        dilation: distance between the keys of the window.
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
        >>> Local(Heads(count=2, key_dim=8, causal=True), window=64)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Child et al. 2019, section 4; dilation: Beltagy et al. 2020, section 3.1.
    """

    info = Info(
        title="Local window",
        source="Child et al. 2019, section 4; Beltagy et al. 2020, section 3.1 (dilation)",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, bias=True, state=True, prefix=True),
        time=1,
        state="window",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3},
        {"window": 2, "dilation": 3, "impl": "torch"},
        {"window": 9, "scale": 0.7},
        {"window": 4, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a window needs queries and keys at the same positions"}

    def __init__(
        self,
        heads: Heads,
        *,
        window: int = 128,
        dilation: int = 1,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if window < 0 or dilation < 1:
            raise ConfigError(f"local needs window >= 0 and dilation >= 1, got {window=}, {dilation=}")
        pattern = neighbours(window) if dilation == 1 else dilated(window, dilation)
        super().__init__(heads, pattern, scale=scale, impl=impl)
        self.window, self.dilation = window, dilation

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| in {0, r, ..., wr}."""
        distance = (i - j).abs()
        return (distance % self.dilation == 0) & (distance // self.dilation <= self.window)
