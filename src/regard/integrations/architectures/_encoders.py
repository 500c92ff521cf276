"""Encoders in the shape of BERT: configuration, weights, and networks: bare, for masked tokens, for classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import (
    AttentionModule,
    Form,
    Key,
    Table,
    Widths,
    activation,
    class_count,
    class_settings,
    pairs,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import Classifier, Encoder, EncoderConfig, MaskedLanguageModel
from regard.models.heads import Activation

Network = Encoder | MaskedLanguageModel | Classifier

ENCODER_KEYS = {
    "dim": Key("hidden_size", 768),
    "heads": Key("num_attention_heads", 12),
    "layers": Key("num_hidden_layers", 12, Settings.layers),
    "mlp": Key("hidden_act", "gelu", activation),
    "mlp_dim": Key("intermediate_size", 3072),
    "norm_eps": Key("layer_norm_eps", 1e-12, Settings.number),
    "dropout": Key("hidden_dropout_prob", 0.1, Settings.number),
    "attention_dropout": Key("attention_probs_dropout_prob", 0.1, Settings.number),
}
"""our field -> their setting, in all encoders"""


def encoder_table(
    name: str, *, keys: Mapping[str, Key] | None = None, offset: int | None = 0, skip_padding: bool = False
) -> Table:
    """The configuration of an encoder.

    Args:
        name: of the architecture.
        keys: those whose default is not BERT's.
        offset: rows of the position table before the first token's; None: they are a setting.
        skip_padding: positions count real tokens.
    """
    fixed = {} if offset is None else {"position_offset": offset}
    return Table(
        name,
        EncoderConfig,
        position="learned",
        keys={
            **ENCODER_KEYS,
            "vocab_size": Key("vocab_size", 30522),
            "token_types": Key("type_vocab_size", 2),
            "max_length": Key("max_position_embeddings", 512),
            **(keys or {}),
        },
        fixed={
            **fixed,
            "input_dim": 0,
            "cls_token": False,
            "embedding_norm": True,
            "norm": "post",
            "norm_kind": "layer",
            "bias": True,
            "skip_padding": skip_padding,
        },
        only={
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            "is_decoder": False,
            "add_cross_attention": False,
            "is_causal": False,
        },
    )


def encoder_config(table: Table, settings: Settings, **further: object) -> EncoderConfig:
    """The encoder of a configuration.

    Raises:
        CheckpointError: every problem of the configuration.
    """
    return table.config(settings, {**table.read(settings), "pooler": True, **further})


def encoder_settings(table: Table, config: EncoderConfig, **wanted: Any) -> dict[str, object]:
    """Their settings of an encoder.

    Args:
        table: of the architecture.
        config: ours.
        wanted: as `Table.settings`.

    Raises:
        UnsupportedError: an encoder that is none of this architecture.
    """
    settings = table.settings(config, **{"projection_bias": (None, True), **wanted})
    if not config.token_types:
        raise UnsupportedError(f"this model cannot be written as {table.name}: token_types=0, not at least 1")
    return settings


def roberta_config(table: Table, settings: Settings) -> EncoderConfig:
    """The encoder of a configuration whose positions count real tokens, behind the row of padding; errors as
    `encoder_config`."""
    found, offset = table.read(settings), int(settings.number("pad_token_id", 1)) + 1
    rows = found["max_length"]
    if rows <= offset:
        settings.problems.append(f"max_position_embeddings={rows} leaves no position behind pad_token_id={offset - 1}")
    return table.config(settings, found | {"pooler": True, "position_offset": offset, "max_length": rows - offset})


def roberta_settings(table: Table, config: EncoderConfig, **wanted: Any) -> dict[str, object]:
    """Their settings of an encoder of `roberta_config`; errors as `encoder_settings`."""
    offset, settings = config.position_offset, encoder_settings(table, config, **wanted)
    return {**settings, "max_position_embeddings": config.max_length + offset, "pad_token_id": offset - 1}


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


class MaskedHead(NamedTuple):
    """A head for masked tokens: (our module, theirs), and their names of the bias and of the output layer."""

    modules: Sequence[tuple[str, str]]
    bias: str
    decoder: str


MASKED = MaskedHead(
    (("transform", "cls.predictions.transform.dense"), ("norm", "cls.predictions.transform.LayerNorm")),
    bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
)
MASKED_ROBERTA = MaskedHead(
    (("transform", "lm_head.dense"), ("norm", "lm_head.layer_norm")), bias="lm_head.bias", decoder="lm_head.decoder"
)
_CLASSES = (("pooler", "classifier.dense"), ("output", "classifier.out_proj"))


def encoder_forms(
    prefix: str,
    title: str,
    *,
    masked: MaskedHead,
    classes: Sequence[tuple[str, str]] = _CLASSES,
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
        masked: names of the head for masked tokens.
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
                *pairs(masked.modules, bias=True),
                Weight("bias", masked.bias),
            ],
            ignored=(*ignored, "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
            derived=derived,
            copies={
                f"{masked.decoder}.weight": f"{prefix}embeddings.word_embeddings.weight",
                f"{masked.decoder}.bias": masked.bias,
            },
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
