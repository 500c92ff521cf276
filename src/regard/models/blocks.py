"""The parts of a Transformer block: norm, MLP, short convolution, and the block around an attention layer."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.core import generator
from regard.layer import AttentionLayer, LayerOutput, linear
from regard.models.block_config import GATED, BlockConfig, MlpKind, NormKind, NormPlace, Recomputed
from regard.models.recompute import recomputed
from regard.state import State


def build_norm(kind: NormKind, dim: int, *, bias: bool, eps: float = 1e-5) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    return nn.RMSNorm(dim, eps=eps) if kind == "rms" else nn.LayerNorm(dim, eps=eps, bias=bias)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
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
        self.act = _ACTIVATIONS[kind]
        self.gate = linear(dim, width, bias=bias, draw=draw) if kind in GATED else None
        self.up = linear(dim, width, bias=bias, draw=draw)
        self.down = linear(width, dim, bias=bias, draw=draw, scale=scale)

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        """Position by position."""
        gate = self.gate
        inner = self.act(self.up(x)) if gate is None else self.act(gate(x)) * self.up(x)
        return self.down(inner)


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

    def initial(self, batch: int, *, device: torch.device | None, dtype: torch.dtype | None) -> Tensor:
        """The tail before the first position."""
        taps = self.taps
        return taps.new_zeros(batch, len(taps) - 1, taps.shape[1], device=device, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        key_mask: Bool[Tensor, "batch length"] | None = None,
        tail: Float[Tensor, "batch past dim"] | None = None,
    ) -> tuple[Float[Tensor, "batch length dim"], Float[Tensor, "batch past dim"]]:
        """The result, and the last width - 1 inputs for the next call."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[..., None], 0)
        if tail is None:
            tail = self.initial(x.shape[0], device=x.device, dtype=x.dtype)
        padded, past = torch.cat([tail.to(x.dtype), x], 1), tail.shape[1]
        y = torch.zeros_like(x)
        for back, tap in enumerate(self.taps):
            y = y + tap * padded[:, past - back : past - back + x.shape[1]]
        return y, padded[:, x.shape[1] :]


class Block(nn.Module):
    """One layer of a Transformer: attention, then an MLP, each with a residual connection and a norm.

    Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)).

    Args:
        config: shape of the model.
        attention: the attention layer.
        seed: of the MLP's initial weights.

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Radford et al. 2019, section 2.3.
    """

    def __init__(self, config: BlockConfig, attention: AttentionLayer, *, seed: int) -> None:
        super().__init__()
        self.place: NormPlace = config.norm
        self.checkpoint: Recomputed = config.checkpoint
        self.attention = attention
        self.attention_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.mlp: Mlp | None = None
        # GPT-2 shrinks what enters the residual stream, so that its variance does not grow with depth.
        scale = (2 * config.layers) ** -0.5 if config.norm == "pre" else 1.0
        with torch.no_grad():
            attention.output.weight.mul_(scale)
        if config.mlp != "none":
            draw = generator(seed, "mlp")
            self.mlp = Mlp(config.dim, config.mlp_width, config.mlp, bias=config.bias, draw=draw, scale=scale)
            self.mlp_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
        state: State | None = None,
        memory: Tensor | None = None,
    ) -> LayerOutput:
        """The hidden states after this block; state, memory and losses as `AttentionLayer` returns them."""
        whole = self.checkpoint == "block"
        return recomputed(whole, self._whole, x, key_mask, positions, marks, memory, state=state)

    def _whole(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None,
        marks: Tensor | None,
        memory: Tensor | None,
        state: State | None,
    ) -> LayerOutput:
        pre, norm, mlp = self.place == "pre", self.attention_norm, self.mlp
        inner = norm(x) if pre else x
        attend = partial(self.attention, key_mask=key_mask, positions=positions, marks=marks, memory=memory)
        got = recomputed(self.checkpoint == "attention", attend, inner, state=state)
        x = x + self._dropped(got.hidden)
        x = x if pre else norm(x)
        if mlp is not None:
            norm = self.mlp_norm
            x = x + self._dropped(mlp(norm(x) if pre else x))
            x = x if pre else norm(x)
        return LayerOutput(x, got.state, got.memory, got.losses)

    def _dropped(self, branch: Tensor) -> Tensor:
        return self.dropout(branch) if self.training else branch
