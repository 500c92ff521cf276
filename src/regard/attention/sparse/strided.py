"""Sparse Transformer's strided pattern: some heads see the last positions, others every l-th one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.sparse import Sparse
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import per_head, strided, window


@final
class Strided(Sparse):
    """Softmax over one of two sets: A1 = {j: i - l <= j <= i} or A2 = {j <= i: (i - j) mod l = 0}.

    `stride` = l, about sqrt(length), or the width of an image. A1 has l + 1 keys, as in the paper (its public code has
    l). The paper combines the sets in three ways: heads of either kind (`part="heads"`: even heads A1, odd heads A2;
    the best of the three there), layers of either kind (a layer with `part="window"`, the next with `part="stride"`),
    or both in every head (`strided_union`). A1 then A2, or A2 then A1, reach every earlier position.
    Cost: O(length (stride + length / stride) dim) time, which is O(length^1.5 dim) at l = sqrt(length); `part="window"`
    O(length stride dim); O(length) memory. What is lost: in one layer the far keys between the multiples of l.
    State: every key and value; `part="window"`: the last l.

    Args:
        heads: what to serve; causal. A single head with `part="heads"` has the window alone.
        stride: past keys of the window, and distance between the far keys.
        part: which heads see which set.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state; `flex` is FlexAttention, which has no backward on a CPU.

    Raises:
        ConfigError: a stride below 1, an unknown `part` or `impl`.
        UnsupportedError: heads that are not causal, an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 300, 8)
        >>> Strided(Heads(count=2, key_dim=8, causal=True), stride=16)(q, q, q).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Child et al. 2019, sections 4.2 (strided) and 4.3 (heads of either kind, interleaved layers).
    """

    info = Info(
        title="Strided",
        source="Child et al. 2019, sections 4.2 and 4.3",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        time=2,
        state="length",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"stride": 4},
        {"stride": 3, "part": "stride", "impl": "torch"},
        {"stride": 5, "part": "window", "scale": 0.7},
        {"stride": 3, "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "its sets are of past keys; local_atrous and atrous are like sets without a direction",
        "cross": "a distance needs queries and keys at the same positions",
    }

    @classmethod
    def facts(cls, **options: object) -> Info:
        """A window is linear in the length."""
        info = super().facts(**options)
        if options.get("part") == "window" and info.supports.state:
            info = replace(info, time=1, state="window")
        return info

    def __init__(
        self,
        heads: Heads,
        *,
        stride: int = 128,
        part: Literal["heads", "window", "stride"] = "heads",
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "flex"] = "auto",
    ) -> None:
        if stride < 1:
            raise ConfigError(f"strided needs stride >= 1, got {stride=}")
        match part:
            case "heads":
                pattern = per_head(*(strided(stride) if h % 2 else window(stride) for h in range(heads.count)))
            case "window":
                pattern = window(stride)
            case "stride":
                pattern = strided(stride)
            case _:
                raise ConfigError(f"strided has no part={part!r}; it has heads, window, stride")
        super().__init__(heads, pattern, scale=scale, impl=impl, part=part)
        self.stride, self.part = stride, part

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """A1 for the even heads, A2 for the odd ones; or one of the two for all."""
        window, strided = i - j <= self.stride, (i - j) % self.stride == 0
        by_head = [window, strided] * self.heads.count
        return {"heads": torch.stack(by_head[: self.heads.count]), "window": window, "stride": strided}[self.part]
