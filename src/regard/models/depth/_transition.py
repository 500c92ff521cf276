"""The transition of a Universal Transformer that reads the neighbours of a token: a separable convolution."""

from typing import cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import generator
from regard.core.composite import States
from regard.core.state import State, Summary
from regard.layer import linear
from regard.models.block_config import BlockConfig
from regard.models.parts import ShortConvolution, build_norm

KERNELS = 3, 5
"""widths of the two convolutions, those of the published code"""


@final
class Transition(nn.Module):
    """The residual branch c(relu(c'(x))), where c' and c are separable convolutions of 3 and 5 positions.

    Separable: channel by channel over the positions, then a linear layer over the channels. Causal, of a position and
    those before it; otherwise of as many on either side. Masked positions count as 0, and so does what is beyond the
    ends. Pre-norm: x + f(norm(x)); post-norm: norm(x + f(x)).

    Args:
        config: shape of the model.
        width: channels between the two.
        seed: of the initial weights.

    Source: Dehghani et al. 2019, section 2.1; widths: the published code (sepconv, 3 and 5, padded on the left).
    """

    def __init__(self, config: BlockConfig, width: int, *, seed: int) -> None:
        super().__init__()
        draw = generator(seed, "transition")
        self.pre = config.norm == "pre"
        self.first, self.second = (
            ShortConvolution(channels, kernel, draw=draw)
            for channels, kernel in zip((config.dim, width), KERNELS, strict=True)
        )
        scale = (2 * config.layers) ** -0.5 if self.pre else 1.0  # as in `Block`
        self.up = linear(config.dim, width, bias=True, draw=draw)
        self.down = linear(width, config.dim, bias=True, draw=draw, scale=scale)
        self.norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def initial_state(self, batch: int, *, device: torch.device, dtype: torch.dtype) -> State:
        """The last inputs of both convolutions, before the first position."""
        place = {"device": device, "dtype": dtype}
        both = (convolution.initial_state(batch, **place) for convolution in (self.first, self.second))
        return States(dict(zip(("first", "second"), both, strict=True)))

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None,
        causal: bool,
        state: State | None,
    ) -> tuple[Float[Tensor, "batch length dim"], State]:
        """The hidden states after it, and what the next call goes on with.

        Args:
            x: hidden states.
            key_mask: True = real.
            causal: whether later positions are not seen.
            state: of a causal one, from `initial_state` or an earlier call.
        """
        past = cast("States | None", state)
        tails = (None, None) if past is None else (cast(Summary, past["first"]), cast(Summary, past["second"]))
        inner, first = self._convolved(self.first, self.norm(x) if self.pre else x, key_mask, causal, tails[0])
        inner, second = self._convolved(self.second, F.relu(self.up(inner)), key_mask, causal, tails[1])
        x = x + self.dropout(self.down(inner))
        return x if self.pre else self.norm(x), States({"first": first, "second": second})

    @staticmethod
    def _convolved(
        convolution: ShortConvolution, x: Tensor, key_mask: Tensor | None, causal: bool, tail: Summary | None
    ) -> tuple[Tensor, Summary]:
        ahead = 0 if causal else len(convolution.taps) // 2
        mask = None if key_mask is None else F.pad(key_mask, (0, ahead))
        y, after = convolution(F.pad(x, (0, 0, 0, ahead)), mask, tail)
        return y[:, ahead:], after
