"""The parts of a Transformer: norms, MLP, short convolution."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.core.state import Summary
from regard.layer import linear, side_by_side
from regard.models.block_config import GATED, MlpKind, NormKind


def build_norm(kind: NormKind, dim: int, *, bias: bool, eps: float = 1e-5) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019), with a gain for each channel or without."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=eps, bias=bias)
    return nn.RMSNorm(dim, eps=eps, elementwise_affine=kind == "rms")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
    "tanh": torch.tanh,
    "swiglu": nn.functional.silu,
    "geglu": nn.functional.gelu,
    "geglu_tanh": partial(nn.functional.gelu, approximate="tanh"),
}


class Mlp(nn.Module):
    """down(act(up(x))), or the gated unit down(act(gate(x)) * up(x)): act is silu in `swiglu`, gelu in `geglu`.

    Args:
        dim: width in and out.
        width: hidden width.
        kind: gelu, gelu_tanh (its approximation by tanh), relu, swiglu, geglu or geglu_tanh.
        bias: whether the linear layers have biases.
        draw: source of the initial weights.
        scale: factor of the initial weights of `down`.

    Source: Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, equation 6.
    """

    def __init__(
        self, dim: int, width: int, kind: MlpKind, *, bias: bool, draw: torch.Generator, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.act = ACTIVATIONS[kind]
        self.gate = linear(dim, width, bias=bias, draw=draw) if kind in GATED else None
        self.up = linear(dim, width, bias=bias, draw=draw)
        self.down = linear(width, dim, bias=bias, draw=draw, scale=scale)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        """Position by position."""
        if self.gate is None:
            return self.down(self.act(self.up(x)))
        gate, inner = side_by_side(x, self.gate, self.up)
        return self.down(self.act(gate) * inner)


def in_pieces(mlp: Mlp, x: Float[Tensor, "batch length dim"], count: int) -> Float[Tensor, "batch length dim"]:
    """The MLP of every position, of `count` runs of positions one after the other."""
    return mlp(x) if count == 1 else torch.cat([mlp(piece) for piece in x.chunk(count, 1)], 1)


class ShortConvolution(nn.Module):
    """y_t = sum_{s < width} w_s * x_{t-s}, channel by channel; positions before the start and masked ones count as 0.

    One layer of attention can then compare a token with its predecessor, which recall otherwise spends a layer on.

    Args:
        dim: channels.
        width: taps, the current position included.
        draw: source of the initial taps, normal with variance 1/width.

    Source: the pre-binding of Arora et al. 2023, section 4; depthwise and causal as in H3 (Fu et al. 2023).
    """

    def __init__(self, dim: int, width: int, *, draw: torch.Generator) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.empty(width, dim).normal_(0, width**-0.5, generator=draw))

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Summary:
        """The last inputs, `tail`, before the first position."""
        taps = self.taps
        return Summary({"tail": taps.new_zeros(batch, len(taps) - 1, taps.shape[1], device=device, dtype=dtype)})

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        key_mask: Bool[Tensor, "batch length"] | None = None,
        state: Summary | None = None,
    ) -> tuple[Float[Tensor, "batch length dim"], Summary]:
        """The result, and the last width - 1 inputs for the next call."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[..., None], 0)
        if state is None:
            state = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype)
        tail = state["tail"]
        padded, past = torch.cat([tail.to(x.dtype), x], 1), tail.shape[1]
        y = torch.zeros_like(x)
        for back, tap in enumerate(self.taps):
            y = y + tap * padded[:, past - back : past - back + x.shape[1]]
        return y, Summary({"tail": padded[:, x.shape[1] :]}, state.length + x.shape[1])
