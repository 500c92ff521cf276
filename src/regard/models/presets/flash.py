"""FLASH: gated attention units in linear time."""

from dataclasses import replace
from typing import Literal

from regard.models.config import ModelConfig
from regard.models.presets.gau import gau


def flash(
    *,
    vocab_size: int = 32000,
    dim: int = 768,
    layers: int = 24,
    heads: int = 1,
    head_dim: int = 128,
    value_dim: int | None = None,
    chunk_size: int = 256,
    normaliser: Literal["const", "visible"] = "const",
    unit_gain: float | None = 1.0,
    max_length: int = 8192,
    dropout: float = 0.0,
    seed: int = 0,
) -> ModelConfig:
    """`gau` with squared ReLU within chunks and linear attention across them, O(length); the state does not grow.

    Gains and offsets of the mechanism's four queries and keys stand behind those of the unit: products and sums of
    them, so nothing more can be said with both. The bias by distance within a chunk is the mechanism's.

    Args:
        vocab_size, dim, layers, heads, head_dim, value_dim, unit_gain, max_length, dropout, seed: as `ModelConfig`.
        chunk_size, normaliser: as the mechanism `mixed_chunk`.

    Example:
        >>> flash().attention
        ("mixed_chunk(chunk_size=256, normaliser='const', toeplitz=True)",)

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3.
    """
    base = gau(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        unit_gain=unit_gain,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    mechanism = f"mixed_chunk(chunk_size={chunk_size}, normaliser={normaliser!r}, toeplitz=True)"
    return replace(base, attention=(mechanism,))
