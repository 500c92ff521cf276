"""Models of gated attention units, which are attention and MLP in one: two stand for one layer."""

from typing import Literal

from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard.models.presets._preset import Fields, preset

_SIZES = Fields(
    vocab_size=32000,
    dim=768,
    layers=24,
    heads=1,
    head_dim=128,
    value_dim=None,
    unit_gain=1.0,
    max_length=512,
    dropout=0.0,
)


@preset(ModelConfig, _SIZES)
def gau(
    activation: Literal["relu_squared", "laplace"] = "relu_squared", normaliser: Literal["const", "visible"] = "const"
) -> Fields:
    """A causal language model of gated attention units, which are attention and MLP in one: two stand for one layer.

    One head of width 128 with values twice as wide as the hidden states, and a squared ReLU in place of the softmax.
    Positions are rotary; the paper adds a learned bias by distance, which is left out. Public codes disagree on what
    the weights are divided by (see `relu_squared`). To divide by the length of the call leaks the future: the mechanism
    `regard_lab.published.relu_squared_published:ReluSquaredPublished` does it.

    Gains of queries and keys start at 1, as in bert4keras; the paper and FLASH-pytorch draw them near 0, which
    `unit_gain=None` does: a short training then learns less (see docs/claims.md).

    Args:
        activation, normaliser: as the mechanism `relu_squared`.

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 2; shape: its base model, of BERT base's size.
    """
    spec = f"relu_squared(activation={activation!r}, normaliser={normaliser!r})"
    return Fields(attention=(spec,), block="gated_unit", mlp="none", bias=True)


@preset(gau, Fields(max_length=8192))
def flash(chunk_size: int = 256, normaliser: Literal["const", "visible"] = "const") -> Fields:
    """`gau` with squared ReLU within chunks and linear attention across them, O(length); the state does not grow.

    Gains and offsets of the mechanism's four queries and keys stand behind those of the unit: products and sums of
    them, so nothing more can be said with both. The bias by distance within a chunk is the mechanism's.

    Args:
        chunk_size, normaliser: as the mechanism `mixed_chunk`.

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3.
    """
    return Fields(attention=(f"mixed_chunk(chunk_size={chunk_size}, normaliser={normaliser!r}, toeplitz=True)",))


@preset(gau, Fields(vocab_size=256, layers=48, unit_gain=None, max_length=8192))
def transformer_vq(num_codes: int = 512, block_size: int = 512) -> Fields:
    """`gau` with a softmax over keys that are rounded to codes, O(length); the state does not grow.

    Keys of the query's block and of the block before it are scored by distance too, as in Transformer-XL; older ones
    enter through their codes, without a place. Codes, blocks and the unit are the paper's. It projects queries and keys
    apart, where they are gains and offsets of one projection here, as in the unit; vocabulary (bytes), width and depth
    are ours: 176 million weights.

    Args:
        num_codes, block_size: as the mechanism `vector_quantized`.

    Source: Lingle 2023, Transformer-VQ, section 3.
    """
    spec = f"vector_quantized(num_codes={num_codes}, block_size={block_size}, relative=True)"
    return Fields(attention=(spec,), position="none", norm_kind="rms")


@preset(
    EncoderConfig,
    Fields(vocab_size=12000, dim=768, layers=24, heads=1, head_dim=128, value_dim=None, max_length=512, dropout=0.1),
)
def gau_alpha(base_length: int = 512) -> Fields:
    """Gated attention units whose weights are a softmax that is sharper where more keys are seen.

    Rotary positions, nothing that depends on the length, no biases and no offsets; post-norm by the root mean square,
    without weights. The published model reads Chinese characters.

    Args:
        base_length: as the mechanism `entropy_scaled`: the length at which its softmax is the ordinary one.

    Source: Su et al. 2022, GAU-alpha (Zhuiyi), technical report and published code.
    """
    return Fields(
        attention=(f"entropy_scaled(base_length={base_length})",),
        position="rotary",
        block="gated_unit",
        mlp="none",
        norm="post",
        norm_kind="rms_unscaled",
        bias=False,
    )
