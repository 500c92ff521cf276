"""RoBERTa."""

from dataclasses import replace

from regard.models.encoder_config import EncoderConfig
from regard.models.presets.bert import bert


def roberta(
    *,
    vocab_size: int = 50265,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """RoBERTa base, 125 million weights: BERT without the second type of tokens, over byte pairs.

    Positions count real tokens alone. The position table has two rows before the first token's; padding has the second.
    The large model is (dim, layers, heads) = (1024, 24, 16).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`; `dropout` also drops attention
            weights.

    Example:
        >>> roberta().position_offset
        2

    Source: Liu et al. 2019, section 3; the rows of the position table as in the released code.
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
    return replace(base, position_offset=2, skip_padding=True, token_types=1, norm_eps=1e-5)
