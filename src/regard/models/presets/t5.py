"""T5."""

from regard.models.block_config import MlpKind
from regard.models.encoder_decoder_config import EncoderDecoderConfig


def t5(
    *,
    vocab_size: int = 32128,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    head_dim: int | None = 64,
    mlp: MlpKind = "relu",
    mlp_dim: int | None = 3072,
    tied: bool = True,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderDecoderConfig:
    """T5 base, 220 million weights: pre-norm, biases for distances alone, logits without 1/sqrt(key_dim).

    Small is (dim, layers, heads, mlp_dim) = (512, 6, 8, 2048), large (1024, 24, 16, 4096). Version 1.1 has
    mlp="geglu_tanh", mlp_dim=2048 and an output layer of its own (tied=False). Where the output layer is the embedding
    table, hidden states are scaled by dim^-0.5 before it.

    Args:
        vocab_size, dim, layers, heads, head_dim, mlp, mlp_dim, tied, max_length, dropout, seed: as
            `EncoderDecoderConfig`; `head_dim` None: dim / heads; `dropout` also drops attention weights.

    Example:
        >>> t5().cross_attention, t5(tied=False).logit_scale
        (('softmax(scale=1.0)',), 1.0)

    Source: Raffel et al. 2020, sections 2.1 and 3.1.2; version 1.1: Shazeer 2020 and the released code.
    """
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        attention=("softmax(scale=1.0)",),
        encoder_attention=("softmax(scale=1.0)",),
        cross_attention=("softmax(scale=1.0)",),
        position="t5_bias",
        mlp=mlp,
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="rms",
        norm_eps=1e-6,
        max_length=max_length,
        tied=tied,
        logit_scale=dim**-0.5 if tied else 1.0,
        dropout=dropout,
        attention_dropout=dropout,
        bias=False,
        start_token=0,
        end_token=1,
        seed=seed,
    )
