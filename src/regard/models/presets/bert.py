"""BERT."""

from regard.models.encoder_config import EncoderConfig


def bert(
    *,
    vocab_size: int = 30522,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """BERT base, 110 million weights: post-norm encoder, learned positions, two types of tokens, pooled first token.

    The large model is (dim, layers, heads) = (1024, 24, 16).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`; `dropout` also drops attention
            weights.

    Example:
        >>> bert().mlp_width, bert().token_types
        (3072, 2)

    Source: Devlin et al. 2019, section 3; norm of the embeddings and epsilon as in the released code.
    """
    return EncoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        position="learned",
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
