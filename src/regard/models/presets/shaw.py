"""The Transformer with relative positions in keys and values."""

from regard.models.encoder_decoder_config import EncoderDecoderConfig


def shaw(
    *,
    vocab_size: int = 32768,
    dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_dim: int | None = None,
    max_distance: int = 16,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderDecoderConfig:
    """The base model for translation: the first Transformer with learned vectors for distances instead of sinusoids.

    Every layer's attention to its own side has them; attention to the source knows no distances. The big model is dim
    1024, 16 heads, max_distance 8, dropout 0.3.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `EncoderDecoderConfig`.
        max_distance: from here on all distances are one.

    Example:
        >>> shaw(max_distance=4).attention
        ('shaw(max_distance=4)',)

    Source: Shaw et al. 2018, sections 3 and 4.1.
    """
    attention = (f"shaw(max_distance={max_distance})",)
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=attention,
        encoder_attention=attention,
        position="none",
        embedding_scale=dim**0.5,
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="post",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
