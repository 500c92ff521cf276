"""Every block as its published formula, and a whole decoder of them, written out with matrices alone."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import relu, silu

from regard.layer import AttentionLayer
from regard.layer.projections import GatedProjections
from regard.models.blocks import Block
from regard.models.config import ModelConfig

Branch = Callable[[Tensor], Tensor]


def moved(module, *, seed: int = 9):
    """In float64, in evaluation, with weights off their initial values: the gain of a norm is not 1, no bias is 0."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    return module.double().eval()


def affine(x: Tensor, module) -> Tensor:
    y = x @ module.weight.T
    return y if module.bias is None else y + module.bias


def normed(x: Tensor, norm, config: ModelConfig) -> Tensor:
    """LayerNorm: Ba et al. 2016, equation 4; RMSNorm: Zhang and Sennrich 2019, equation 4."""
    x = x if config.norm_kind.startswith("rms") else x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    y = y if norm.weight is None else y * norm.weight
    bias = getattr(norm, "bias", None)
    return y if bias is None else y + bias


def mlp_of(block: Block) -> Branch | None:
    """relu, and swiglu (Shazeer 2020, equation 6)."""
    mlp = block.mlp
    if mlp is None:
        return None
    if mlp.gate is None:
        return lambda x: affine(relu(affine(x, mlp.up)), mlp.down)
    return lambda x: affine(silu(affine(x, mlp.gate)) * affine(x, mlp.up), mlp.down)


def residual(x: Tensor, block, config: ModelConfig, attend: Branch, mlp: Branch | None) -> Tensor:
    """Vaswani et al. 2017, section 5.4: norm(x + f(x)); Radford et al. 2019, section 2.3: x + f(norm(x))."""
    if config.norm == "pre":
        y = x + attend(normed(x, block.attention_norm, config))
        return y if mlp is None else y + mlp(normed(y, block.mlp_norm, config))
    y = normed(x + attend(x), block.attention_norm, config)
    return y if mlp is None else normed(y + mlp(y), block.mlp_norm, config)


def parallel(x: Tensor, block, config: ModelConfig, attend: Branch, mlp: Branch | None) -> Tensor:
    """Chowdhery et al. 2022, section 2: x + attention(norm(x)) + mlp(norm(x)), one norm; post-norm: of the sum."""
    if config.norm == "pre":
        inner = normed(x, block.attention_norm, config)
        return x + attend(inner) + (0 if mlp is None else mlp(inner))
    return normed(x + attend(x) + (0 if mlp is None else mlp(x)), block.attention_norm, config)


def gated_unit(x: Tensor, block, config: ModelConfig, attend: Branch, mlp: Branch | None) -> Tensor:
    """Hua et al. 2022, figure 2: x + unit(norm(x)), which has no MLP; post-norm: norm(x + unit(x))."""
    assert mlp is None
    return residual(x, block, config, attend, None)


def reversible(x: Tensor, block, config: ModelConfig, attend: Branch, mlp: Branch | None) -> Tensor:
    """Gomez et al. 2017, equation 6, of two streams side by side, with norms inside the branches."""
    assert mlp is not None
    first, second = x.chunk(2, -1)
    first = first + attend(normed(second, block.attention_norm, config))
    return torch.cat([first, second + mlp(normed(first, block.mlp_norm, config))], -1)


FORMULAS = {"residual": residual, "parallel": parallel, "gated_unit": gated_unit, "reversible": reversible}
PLACES, MLPS, AGAIN = ("pre", "post"), ("relu", "swiglu", "none"), ("none", "attention", "block")
TAKEN = {
    "residual": (PLACES, MLPS, AGAIN),
    "parallel": (PLACES, MLPS, AGAIN),
    "gated_unit": (PLACES, ("none",), AGAIN),
    "reversible": (("pre",), ("relu", "swiglu"), ("none",)),
}
"""where norms may stand, which MLPs there may be and what may be computed again in each block"""


def attention(layer: AttentionLayer, x: Tensor, *, at: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
    """Causal softmax attention, keys of groups of heads shared; at: where to rotate; keep: real keys."""
    weights, heads = layer.projections, layer.heads
    gate = None
    if isinstance(weights, GatedProjections):  # Hua et al. 2022, section 2
        z, gate = silu(affine(x, weights.base)), silu(affine(x, weights.gate))
        q, k = (
            z[:, None] * of.gain + (0 if of.offset is None else of.offset)
            for of in (weights.query_scale, weights.key_scale)
        )
        v = silu(affine(x, weights.value)).unflatten(-1, (heads.kv_heads, -1)).transpose(1, 2)
    else:
        q, k, v = (
            affine(x, w).unflatten(-1, (-1, heads.key_dim)).mT for w in (weights.query, weights.key, weights.value)
        )
        q, k, v = (y.permute(0, 3, 1, 2) for y in (q, k, v))
    k, v = (y.repeat_interleave(heads.count // heads.kv_heads, 1) for y in (k, v))
    if at is not None:
        q, k = rotated(q, at), rotated(k, at)
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, None]
    if keep is not None:
        seen = seen & keep[:, None, None, :]
    logits = (q @ k.mT / heads.key_dim**0.5).masked_fill(~seen, float("-inf"))
    averages = logits.softmax(-1).nan_to_num(0) @ v
    joined = averages.permute(0, 2, 1, 3).flatten(2)
    return affine(joined if gate is None else gate * joined, weights.output)
