"""The first Transformer."""

from regard.models.encoder_decoder_config import EncoderDecoderConfig


def transformer(
    *,
    vocab_size: int = 37000,
    dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_dim: int | None = None,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderDecoderConfig:
    """The base model for translation: post-norm encoder and decoder, sinusoids, one embedding table for all three uses.

    The big model is dim 1024, 16 heads, dropout 0.3. Train it with `training.schedule=noam`, 4,000 steps of warm-up and
    `training.label_smoothing=0.1`, as published.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `EncoderDecoderConfig`; the published
            vocabulary is that of English and German byte pairs together.

    Example:
        >>> config = transformer()
        >>> config.norm, config.mlp_width, config.encoder.layers
        ('post', 2048, 6)

    Source: Vaswani et al. 2017, section 3 and table 3.
    """
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        position="sinusoidal",
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
