"""Encoder-decoders."""

from regard.core.errors import ConfigError, nearest
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.presets._preset import Fields, preset


@preset(
    EncoderDecoderConfig,
    Fields(vocab_size=37000, dim=512, layers=6, heads=8, mlp_dim=None, max_length=512, dropout=0.1),
)
def transformer() -> Fields:
    """The base model for translation: post-norm encoder and decoder, sinusoids, one embedding table for all three uses.

    The big model is dim 1024, 16 heads, dropout 0.3. Train it with `training.schedule=noam`, 4,000 steps of warm-up and
    `training.label_smoothing=0.1`, as published. The published vocabulary is that of English and German byte pairs
    together.

    Source: Vaswani et al. 2017, section 3 and table 3.
    """
    return Fields(position="sinusoidal", mlp="relu", norm="post")


@preset(transformer, Fields(vocab_size=32768))
def shaw(dim: int, max_distance: int = 16) -> Fields:
    """The base model for translation: the first Transformer with learned vectors for distances instead of sinusoids.

    Every layer's attention to its own side has them; attention to the source knows no distances. The big model is dim
    1024, 16 heads, max_distance 8, dropout 0.3.

    Args:
        max_distance: from here on all distances are one.

    Source: Shaw et al. 2018, sections 3 and 4.1.
    """
    attention = (f"shaw(max_distance={max_distance})",)
    return Fields(attention=attention, encoder_attention=attention, position="none", embedding_scale=dim**0.5)


_PARTS = ("random", "factorized_random", "dense", "factorized_dense", "dot_product")


@preset(transformer, Fields())
def synthesizer(parts: tuple[str, ...] = ("random", "dot_product")) -> Fields:
    """The base model for translation whose attention to itself is synthesized, in the encoder and in the decoder.

    Attention to the source stays a softmax of products, since a Synthesizer belongs to the slots of one sequence.

    Args:
        parts: what makes the logits: one of `random`, `factorized_random`, `dense` and `factorized_dense`, or several,
            `dot_product` too, for a learned mixture. The default is the paper's best, "Random + Vanilla".
        max_length: tokens of a sequence; a random matrix has its square of weights in each head and layer.

    Raises:
        ConfigError: an unknown part, or `dot_product` alone, which is `transformer`.

    Source: Tay et al. 2020, section 4.1.
    """
    for part in parts:
        if part not in _PARTS:
            raise ConfigError(f"synthesizer has no part {part!r}: {nearest(part, _PARTS)}")
    if not parts or parts == ("dot_product",):
        raise ConfigError(f"synthesizer has parts besides dot_product, got parts={parts!r}; without them: transformer")
    spec = f"{parts[0]}_synthesizer" if len(parts) == 1 else f"mixture_synthesizer(parts={parts!r})"
    return Fields(attention=(spec,), encoder_attention=(spec,))


_T5_SIZES = Fields(
    vocab_size=32128,
    dim=768,
    layers=12,
    heads=12,
    head_dim=64,
    mlp="relu",
    mlp_dim=3072,
    tied=True,
    max_length=512,
    dropout=0.1,
)


@preset(EncoderDecoderConfig, _T5_SIZES)
def t5(dim: int, tied: bool, dropout: float) -> Fields:
    """T5 base, 220 million weights: pre-norm, biases for distances alone, logits without 1/sqrt(key_dim).

    Small is (dim, layers, heads, mlp_dim) = (512, 6, 8, 2048), large (1024, 24, 16, 4096). Version 1.1 has
    mlp="geglu_tanh", mlp_dim=2048 and an output layer of its own (tied=False). Where the output layer is the embedding
    table, hidden states are scaled by dim^-0.5 before it. `dropout` also drops attention weights.

    Source: Raffel et al. 2020, sections 2.1 and 3.1.2; version 1.1: Shazeer 2020 and the released code.
    """
    unscaled = ("softmax(scale=1.0)",)
    return Fields(
        attention=unscaled,
        encoder_attention=unscaled,
        cross_attention=unscaled,
        position="t5_bias",
        norm_kind="rms",
        norm_eps=1e-6,
        logit_scale=dim**-0.5 if tied else 1.0,
        attention_dropout=dropout,
        bias=False,
    )


@preset(EncoderDecoderConfig, Fields(vocab_size=50265, dim=1024, layers=12, heads=16, max_length=1024, dropout=0.1))
def bart() -> Fields:
    """BART large, 406 million weights: the first Transformer with GELU, learned positions and a norm of the embeddings.

    Its position tables have two rows before the first token's, and its output layer a bias for every token. The base
    model is (dim, layers, heads) = (768, 6, 12).

    Source: Lewis et al. 2020, section 2.1; rows of the position table and tokens as in the released code.
    """
    return Fields(
        position="learned",
        position_offset=2,
        embedding_norm=True,
        norm="post",
        output_bias=True,
        start_token=2,
        end_token=2,
    )
