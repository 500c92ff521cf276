"""Encoders in the shape of BERT: configuration, weights, and networks: bare, for masked tokens, for classes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from regard.errors import UnsupportedError
from regard.integrations.architectures._base import (
    ACTIVATIONS,
    AttentionModule,
    Form,
    Widths,
    activation,
    class_count,
    class_settings,
    pairs,
    require,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import Classifier, Encoder, EncoderConfig, MaskedLanguageModel
from regard.models.heads import Activation

Network = Encoder | MaskedLanguageModel | Classifier


def encoder_config(
    settings: Settings,
    *,
    offset: int,
    act: str = "gelu",
    vocab_size: int = 30522,
    rows: int = 512,
    norm_eps: float = 1e-12,
) -> EncoderConfig:
    """The encoder of a configuration; `offset` rows of its position table precede the first token's.

    Args:
        settings: theirs, with what problems were found before.
        offset: of positions.
        act, vocab_size, rows, norm_eps: what stands for `hidden_act`, `vocab_size`, `max_position_embeddings` and
            `layer_norm_eps` left out.

    Raises:
        CheckpointError: every problem of the configuration.
    """
    dim, heads = settings.axis("hidden_size", 768), settings.axis("num_attention_heads", 12)
    settings.divides("num_attention_heads", heads, "hidden_size", dim)
    chosen = settings.choice("hidden_act", list(ACTIVATIONS), act)
    settings.choice("position_embedding_type", ["absolute"], "absolute")
    settings.choice("tie_word_embeddings", [True], True)
    for name in ("is_decoder", "add_cross_attention", "is_causal"):
        settings.choice(name, [False], False)
    rows = settings.axis("max_position_embeddings", rows)
    if rows <= offset:
        settings.problems.append(f"max_position_embeddings={rows} leaves no position behind pad_token_id={offset - 1}")
    config = {
        "vocab_size": settings.axis("vocab_size", vocab_size),
        "layers": settings.layers("num_hidden_layers", 12),
        "mlp_dim": settings.axis("intermediate_size", 3072),
        "token_types": settings.axis("type_vocab_size", 2),
        "norm_eps": settings.number("layer_norm_eps", norm_eps),
        "dropout": settings.number("hidden_dropout_prob", 0.1),
        "attention_dropout": settings.number("attention_probs_dropout_prob", 0.1),
    }
    settings.check()
    return EncoderConfig(
        **config,  # type: ignore[arg-type]
        dim=dim,
        heads=heads,
        max_length=rows - offset,
        position="learned",
        position_offset=offset,
        embedding_norm=True,
        mlp=ACTIVATIONS[str(chosen)],
        norm="post",
        norm_kind="layer",
        pooler=True,
        bias=True,
    )


def encoder_settings(
    config: EncoderConfig,
    name: str,
    *,
    attention: str | None = "softmax",
    embedding_scale: tuple[float | None, ...] = (None, 1.0),
    projection_bias: tuple[bool | None, ...] = (None, True),
    skip_padding: bool = False,
) -> dict[str, object]:
    """Their settings of an encoder.

    Args:
        config: ours.
        name: of the architecture.
        attention: as `require`.
        embedding_scale, projection_bias, skip_padding: what the architecture has.

    Raises:
        UnsupportedError: an encoder that is none of this architecture.
    """
    require(
        config,
        name,
        attention=attention,
        position="learned",
        norm="post",
        norm_kind="layer",
        embedding_norm=True,
        embedding_scale=embedding_scale,
        bias=True,
        projection_bias=projection_bias,
        skip_padding=skip_padding,
        input_dim=0,
        cls_token=False,
        kv_heads=(None, config.heads),
        key_dim=config.dim // config.heads,
        mlp=tuple(dict.fromkeys(ACTIVATIONS.values())),
    )
    if not config.token_types:
        raise UnsupportedError(f"this model cannot be written as {name}: token_types=0, not at least 1")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": activation(config),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_length + config.position_offset,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": config.norm_eps,
    }


def roberta_config(settings: Settings) -> EncoderConfig:
    """The encoder of a configuration whose positions count real tokens, behind the row of padding; errors as
    `encoder_config`."""
    return replace(encoder_config(settings, offset=int(settings.number("pad_token_id", 1)) + 1), skip_padding=True)


def roberta_settings(
    config: EncoderConfig, name: str = "roberta", attention: str | None = "softmax"
) -> dict[str, object]:
    """Their settings of an encoder of `roberta_config`; errors as `encoder_settings`."""
    settings = encoder_settings(config, name, attention=attention, skip_padding=True)
    return {**settings, "pad_token_id": config.position_offset - 1}


def encoder_weights(
    config: EncoderConfig, prefix: str, ours: str = "encoder.", mechanism: tuple[Weight, ...] = ()
) -> list[Weight]:
    """The weights of an encoder; `prefix` and `ours` precede the names of theirs and of ours.

    `mechanism` are those of an attention module: ours below our mechanism, theirs below their self-attention.
    """
    layer, block = f"{prefix}encoder.layer.{{layer}}", f"{ours}blocks.{{layer}}"
    linear = [
        (f"{ours}embeddings.norm", f"{prefix}embeddings.LayerNorm"),
        (f"{block}.attention.projections.output", f"{layer}.attention.output.dense"),
        (f"{block}.attention_norm", f"{layer}.attention.output.LayerNorm"),
        (f"{block}.mlp.up", f"{layer}.intermediate.dense"),
        (f"{block}.mlp.down", f"{layer}.output.dense"),
        (f"{block}.mlp_norm", f"{layer}.output.LayerNorm"),
    ]
    tables = [
        Weight(f"{ours}embeddings.table.weight", f"{prefix}embeddings.word_embeddings.weight"),
        Weight(f"{ours}embeddings.types.weight", f"{prefix}embeddings.token_type_embeddings.weight"),
        Weight(f"{ours}embeddings.position.table", f"{prefix}embeddings.position_embeddings.weight"),
    ]
    names = ("query", "key", "value")
    projections = [(f"{block}.attention.projections.{name}", f"{layer}.attention.self.{name}") for name in names]
    if config.projections == "global":
        rows = f"{block}.attention.projections.global_rows"
        projections += [(f"{rows}.{name}", f"{layer}.attention.self.{name}_global") for name in names]
    biased = config.projection_bias is not False
    here, there = f"{block}.attention.attention", f"{layer}.attention.self"
    own = [replace(one, ours=f"{here}.{one.ours}", theirs=f"{there}.{one.theirs}") for one in mechanism]
    return each([*tables, *pairs(linear, bias=True), *pairs(projections, bias=biased), *own], config.layers)


def mlp_activation(config: EncoderConfig) -> Activation:
    """The activation of the MLP, for a head that has the same."""
    return cast(Activation, config.mlp)


def encoder_forms(
    prefix: str,
    title: str,
    *,
    masked: list[tuple[str, str]],
    bias: str,
    decoder: str,
    classes: list[tuple[str, str]],
    pooler: str = "pooler.dense",
    transform: Callable[[EncoderConfig], Activation] = lambda config: "gelu",
    pooled: Callable[[EncoderConfig], Activation] = lambda config: "tanh",
    encoder: Callable[[EncoderConfig], Encoder] = Encoder,
    derived: tuple[str, ...] = (),
    mechanism: Callable[[EncoderConfig], tuple[Weight, ...]] = lambda config: (),
    settings: Callable[[Network], dict[str, object]] = lambda network: {},
) -> tuple[Form, ...]:
    """An encoder bare, for masked tokens and for classes.

    Args:
        prefix: of the encoder's tensors.
        title: the beginning of its networks' names.
        masked: (our module, theirs) of the head for masked tokens, whose `bias` and `decoder` have these names.
        classes: (our module, theirs) of the head for classes.
        pooler: their module that a network without a head for classes has no use for.
        transform, pooled: the activation of the head for masked tokens, and of that for classes.
        encoder: builds ours.
        derived: as `Form`.
        mechanism: weights of an attention module, as `encoder_weights`.
        settings: as `Form`.
    """
    ignored = (".embeddings.position_ids", f"{prefix}{pooler}.weight", f"{prefix}{pooler}.bias")
    pooling = {theirs for ours, theirs in classes if ours == "pooler"}

    def classifier(config: EncoderConfig, published: Settings) -> Classifier:
        return Classifier(encoder(config), classes=class_count(published), activation=pooled(config))

    def weights(config: EncoderConfig, ours: str) -> list[Weight]:
        return encoder_weights(config, prefix, ours, mechanism(config))

    def headed(model: MaskedLanguageModel | Classifier) -> dict[str, object]:
        config, masks = model.encoder.config, isinstance(model, MaskedLanguageModel)
        wanted = transform(config) if masks else pooled(config)
        if model.activation != wanted:
            raise UnsupportedError(f"{title} has {wanted!r} in this head, and the model {model.activation!r}")
        return {**settings(model), **({} if masks else class_settings(cast(Classifier, model), title))}

    return (
        Form(
            titles=(f"{title}Model",),
            model=Encoder,
            build=lambda config, published: encoder(config),
            weights=lambda config: weights(config, ""),
            bare=True,
            ignored=ignored,
            derived=derived,
            settings=settings,
        ),
        Form(
            titles=(f"{title}ForMaskedLM", f"{title}ForPreTraining"),
            model=MaskedLanguageModel,
            build=lambda config, published: MaskedLanguageModel(encoder(config), activation=transform(config)),
            weights=lambda config: [
                *weights(config, "encoder."),
                *pairs(masked, bias=True),
                Weight("bias", bias),
            ],
            ignored=(*ignored, "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
            derived=derived,
            copies={f"{decoder}.weight": f"{prefix}embeddings.word_embeddings.weight", f"{decoder}.bias": bias},
            settings=headed,
        ),
        Form(
            titles=(f"{title}ForSequenceClassification",),
            model=Classifier,
            build=classifier,
            weights=lambda config: [*weights(config, "encoder."), *pairs(classes, bias=True)],
            ignored=ignored[:1] if f"{prefix}{pooler}" in pooling else ignored,
            derived=derived,
            settings=headed,
        ),
    )


def attention_modules(title: str) -> dict[str, AttentionModule]:
    """The attention modules of transformers whose names begin with a title."""

    def widths(module: Any) -> Widths:
        return Widths(module.num_attention_heads, module.num_attention_heads, module.attention_head_size)

    return {
        f"{title}CrossAttention": AttentionModule(widths, cross=lambda module: True),
        f"{title}SelfAttention": AttentionModule(widths),
    }


MASKED = [("transform", "cls.predictions.transform.dense"), ("norm", "cls.predictions.transform.LayerNorm")]
"""BERT's head for masked tokens: our modules and theirs"""
MASKED_ROBERTA = [("transform", "lm_head.dense"), ("norm", "lm_head.layer_norm")]
CLASSES_ROBERTA = [("pooler", "classifier.dense"), ("output", "classifier.out_proj")]
