"""A window, and global tokens that see and are seen by all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._globals import Globals
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.patterns import Pattern, dilated, per_head
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

    Example:
        >>> from regard import Heads
        >>> attention = Longformer(Heads(count=1, key_dim=1), window=1, num_global=0)
        >>> first = torch.tensor([[1, 0, 0, 0, 0, 0]])
        >>> q, v = torch.zeros(1, 1, 6, 1), first[:, None, :, None].float()
        >>> seen = [attention(q, q, v, marks=marks).values > 0 for marks in (0 * first, first)]
        >>> [x.int().flatten().tolist() for x in seen]  # who sees the first token, without a mark and with one
        [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]

    Source: Beltagy et al. 2020, section 3.1.
    """

    default_info = Info(
        title="Window and global tokens (Longformer)",
        source="Beltagy et al. 2020, section 3.1",
        supports=Supports.all(but=("cross",)),
        time=1,
        state="window",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3},
        {"window": 2, "dilation": (1, 3), "num_global": 2},
        {"window": 3, "num_global": 0, "scale": 0.7},
    )

    reasons: ClassVar[Mapping[str, str]] = {"cross": "a window needs queries and keys at the same positions"}

    window: Annotated[int, Ge(0)] = 256
    """keys on either side; causal: past keys besides the query's own"""
    dilation: Annotated[int, Ge(1)] | tuple[Annotated[int, Ge(1)], ...] = 1
    """distance between the keys of the window; a tuple: heads take its numbers in turn"""
    num_global: Annotated[int, Ge(0)] = 1
    """the first tokens that are global without a mark"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Without first global tokens nothing depends on absolute slots."""
        return replace(cls.default_info, anchored=options["num_global"] > 0)

    def check_options(self) -> None:
        if self.dilation == ():
            raise ConfigError("longformer needs a dilation for the heads to take, got dilation=()")

    @property
    def steps(self) -> list[int]:
        """r of every head."""
        steps = (self.dilation,) if isinstance(self.dilation, int) else self.dilation
        return [steps[head % len(steps)] for head in range(self.heads.count)]

    @property
    def leading(self) -> int:
        """The first tokens that are global."""
        return self.num_global

    @property
    def symmetric(self) -> bool:
        """Causal, a global row would see every earlier token, and the state would keep all of them."""
        return not self.heads.causal

    def pairs(self) -> Pattern:
        """The window of every head."""
        each = [neighbours(self.window) if step == 1 else dilated(self.window, step) for step in self.steps]
        return each[0] if len(set(self.steps)) == 1 else per_head(*each)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """|i - j| in {0, r, ..., wr}, for the r of every head."""
        distance = (i - j).abs()
        return torch.stack([(distance % step == 0) & (distance // step <= self.window) for step in self.steps])

    def kept_slots(self, length: int) -> int:
        """Causal: the last w r of the largest r, and the first global ones before these."""
        if not self.heads.causal:
            return length
        last = min(length, self.window * max(self.steps))
        return last + min(self.num_global, length - last)
