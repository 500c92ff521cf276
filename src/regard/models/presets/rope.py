"""RoFormer, the encoder that brought rotary positions."""

from dataclasses import replace

from regard.models.encoder_config import EncoderConfig
from regard.models.presets.bert import bert


def rope(
    *,
    vocab_size: int = 30522,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """RoFormer: BERT base with rotary positions in every layer instead of a table.

    `llama` is a decoder with them.

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`; `dropout` also drops attention
            weights.

    Example:
        >>> rope().position
        'rotary(layout=interleaved)'

    Source: Su et al. 2021, section 4.2.
    """
    base = bert(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    return replace(base, position="rotary(layout=interleaved)")
