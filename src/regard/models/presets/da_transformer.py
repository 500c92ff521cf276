"""The distance-aware Transformer."""

from regard.models.encoder_config import EncoderConfig


def da_transformer(
    *,
    vocab_size: int = 30522,
    dim: int = 256,
    layers: int = 1,
    heads: int = 16,
    mlp_dim: int | None = None,
    max_length: int = 512,
    dropout: float = 0.2,
    seed: int = 0,
) -> EncoderConfig:
    """A classifier of texts whose heads rescale their logits by the distance, each with a preference of its own.

    The paper classifies texts with small encoders over pretrained word vectors; the sizes, the table of embeddings and
    the mean over positions are this library's choice.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `EncoderConfig`.

    Example:
        >>> da_transformer().attention, da_transformer().position
        (('distance_aware',), 'none')

    Source: Wu, Wu, Huang 2021, section 3.
    """
    return EncoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("distance_aware",),
        position="none",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="post",
        norm_kind="layer",
        max_length=max_length,
        pooling="mean",
        dropout=dropout,
        bias=True,
        seed=seed,
    )
