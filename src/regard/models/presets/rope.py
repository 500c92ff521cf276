"""RoFormer, the encoder that brought rotary positions."""

from regard.models.encoder_config import EncoderConfig


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
    return EncoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        position="rotary(layout=interleaved)",
        token_types=2,
        embedding_norm=True,
        mlp="gelu",
        norm="post",
        norm_kind="layer",
        norm_eps=1e-12,
        max_length=max_length,
        pooler=True,
        dropout=dropout,
        attention_dropout=dropout,
        bias=True,
        seed=seed,
    )
