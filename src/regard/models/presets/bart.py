"""BART."""

from regard.models.encoder_decoder_config import EncoderDecoderConfig


def bart(
    *,
    vocab_size: int = 50265,
    dim: int = 1024,
    layers: int = 12,
    heads: int = 16,
    max_length: int = 1024,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderDecoderConfig:
    """BART large, 406 million weights: the first Transformer with GELU, learned positions and a norm of the embeddings.

    Its position tables have two rows before the first token's, and its output layer a bias for every token. The base
    model is (dim, layers, heads) = (768, 6, 12).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderDecoderConfig`.

    Example:
        >>> bart().norm, bart().position_offset, bart().output_bias
        ('post', 2, True)

    Source: Lewis et al. 2020, section 2.1; rows of the position table and tokens as in the released code.
    """
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        position="learned",
        position_offset=2,
        embedding_norm=True,
        mlp="gelu",
        norm="post",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        output_bias=True,
        dropout=dropout,
        bias=True,
        start_token=2,
        end_token=2,
        seed=seed,
    )
