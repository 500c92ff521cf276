"""A window, and global tokens that see and are seen by all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.sparse import Globals
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.patterns import dilated, per_head
from regard.patterns import window as neighbours


@final
class Longformer(Globals):
    """Softmax over a window and global tokens: i sees j if |i - j| in {0, r, ..., wr}, or if i or j is global.

    `window` = w (half of `attention_window` in the authors' code), `dilation` = r, global tokens = G: those with a mark
    other than 0, different ones in every batch row, and the first `num_global`. A hidden token is not global.
    Causal: j <= i, and a global token is one that later tokens see; it sees what all others see. The rows of G have
    projections of their own in a layer with `projections="global"`. Windows that grow by layer are a spec per layer.
    Cost: O(length (w + G) dim) time, O(length) memory. What is lost: two distant tokens meet only through G.
    State: a ring of the last w r keys and values, and those of G.

    Args:
        heads: what to serve.
        window: keys on either side; causal: past keys besides the query's own.
        dilation: distance between the keys of the window; a tuple: heads take its numbers in turn.
        num_global: the first tokens that are global without a mark.
        scale: of the logits; None: 1/sqrt(key_dim).
        impl: `torch` always walks 64 x 64 tiles; `auto` takes one tile up to 256 positions; `reference` is the
            definition, without a state.

    Raises:
        ConfigError: a negative window or number, no dilation or one below 1, an unknown `impl`.
        UnsupportedError: an `impl` that this mechanism does not have.

    Example:
        >>> import torch
        >>> from regard import Heads
        >>> q, marks = torch.randn(1, 2, 300, 8), torch.zeros(1, 300, dtype=torch.long)
        >>> marks[0, [0, 150]] = 1
        >>> Longformer(Heads(count=2, key_dim=8), window=64, dilation=(1, 2))(q, q, q, marks=marks).values.shape
        torch.Size([1, 2, 300, 8])

    Source: Beltagy et al. 2020, section 3.1.
    """

    info = Info(
        title="Window and global tokens (Longformer)",
        source="Beltagy et al. 2020, section 3.1",
        supports=Supports(
            causal=True, bidirectional=True, key_mask=True, bias=True, marks=True, state=True, prefix=True
        ),
        time=1,
        state="window",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3},
        {"window": 2, "dilation": (1, 3), "num_global": 2, "impl": "torch"},
        {"window": 3, "num_global": 0, "scale": 0.7},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a window needs queries and keys at the same positions"}

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Without first global tokens nothing depends on absolute slots."""
        return replace(super().facts(**options), anchored=bool(options.get("num_global", 1)))

    def __init__(
        self,
        heads: Heads,
        *,
        window: int = 256,
        dilation: int | tuple[int, ...] = 1,
        num_global: int = 1,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch"] = "auto",
    ) -> None:
        steps = (dilation,) if isinstance(dilation, int) else tuple(dilation)
        if window < 0 or min(steps, default=0) < 1:
            raise ConfigError(f"longformer needs window >= 0 and dilations >= 1, got {window=}, {dilation=}")
        each_step = [steps[head % len(steps)] for head in range(heads.count)]
        each = [neighbours(window) if step == 1 else dilated(window, step) for step in each_step]
        pattern = each[0] if len(set(each_step)) == 1 else per_head(*each)
        # Causal, a global row would see every earlier token, and the state would keep all of them.
        super().__init__(
            heads,
            pattern,
            leading=num_global,
            symmetric=not heads.causal,
            scale=scale,
            impl=impl,
            num_global=num_global,
        )
        self.window, self.dilation, self.num_global, self.steps = window, dilation, num_global, each_step

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| in {0, r, ..., wr}, for the r of every head."""
        distance = (i - j).abs()
        return torch.stack([(distance % step == 0) & (distance // step <= self.window) for step in self.steps])
