"""Transformer-VQ: gated attention units in linear time by quantised keys."""

from dataclasses import replace

from regard.models.config import ModelConfig
from regard.models.presets.gau import gau


def transformer_vq(
    *,
    vocab_size: int = 256,
    dim: int = 768,
    layers: int = 48,
    heads: int = 1,
    head_dim: int = 128,
    value_dim: int | None = None,
    num_codes: int = 512,
    block_size: int = 512,
    max_length: int = 8192,
    dropout: float = 0.0,
    seed: int = 0,
) -> ModelConfig:
    """`gau` with a softmax over keys that are rounded to codes, O(length); the state does not grow.

    Keys of the query's block and of the block before it are scored by distance too, as in Transformer-XL; older ones
    enter through their codes, without a place. Codes, blocks and the unit are the paper's. It projects queries and keys
    apart, where they are gains and offsets of one projection here, as in the unit; vocabulary (bytes), width and depth
    are ours: 176 million weights.

    Args:
        vocab_size, dim, layers, heads, head_dim, value_dim, max_length, dropout, seed: as `ModelConfig`.
        num_codes, block_size: as the mechanism `vector_quantized`.

    Example:
        >>> transformer_vq().attention
        ('vector_quantized(num_codes=512, block_size=512, relative=True)',)

    Source: Lingle 2023, Transformer-VQ, section 3.
    """
    base = gau(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        unit_gain=None,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    mechanism = f"vector_quantized(num_codes={num_codes}, block_size={block_size}, relative=True)"
    return replace(base, attention=(mechanism,), position="none", norm_kind="rms")
