"""BERT and RoBERTa: names, configuration, and their networks: bare, for masked tokens, for classes."""

from regard.errors import UnsupportedError
from regard.integrations._architectures import ACTIVATIONS, Architecture, Form, activation, pairs, require
from regard.integrations._weights import Settings, Weight, each
from regard.models import Classifier, Encoder, EncoderConfig, MaskedLanguageModel


def _encoder(settings: Settings, *, offset: int) -> EncoderConfig:
    dim, heads = settings.size("hidden_size", 768), settings.size("num_attention_heads", 12)
    settings.divides("num_attention_heads", heads, "hidden_size", dim)
    act = settings.choice("hidden_act", list(ACTIVATIONS), "gelu")
    settings.choice("position_embedding_type", ["absolute"], "absolute")
    settings.choice("tie_word_embeddings", [True], True)
    for name in ("is_decoder", "add_cross_attention"):
        settings.choice(name, [False], False)
    rows = settings.size("max_position_embeddings", 512)
    if rows <= offset:
        settings.problems.append(f"max_position_embeddings={rows} leaves no position behind pad_token_id={offset - 1}")
    config = {
        "vocab_size": settings.size("vocab_size", 30522),
        "layers": settings.size("num_hidden_layers", 12),
        "mlp_dim": settings.size("intermediate_size", 3072),
        "token_types": settings.size("type_vocab_size", 2),
        "norm_eps": settings.number("layer_norm_eps", 1e-12),
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
        mlp=ACTIVATIONS[str(act)],
        norm="post",
        norm_kind="layer",
        pooler=True,
        bias=True,
    )


def _settings(config: EncoderConfig, name: str) -> dict[str, object]:
    require(
        config,
        name,
        position="learned",
        norm="post",
        norm_kind="layer",
        embedding_norm=True,
        embedding_scale=(None, 1.0),
        bias=True,
        projection_bias=(None, True),
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


def _bert_settings(config: EncoderConfig) -> dict[str, object]:
    found = _settings(config, "bert")
    require(config, "bert", position="learned", position_offset=0)
    return {**found, "pad_token_id": 0}


def _roberta_settings(config: EncoderConfig) -> dict[str, object]:
    found = _settings(config, "roberta")
    if not config.position_offset:
        raise UnsupportedError("this model cannot be written as roberta: position_offset=0, not at least 1")
    # In RoBERTa the first token's row follows that of padding.
    return {**found, "pad_token_id": config.position_offset - 1}


def _blocks(config: EncoderConfig, prefix: str, ours: str = "encoder.") -> list[Weight]:
    layer, block = f"{prefix}encoder.layer.{{layer}}", f"{ours}blocks.{{layer}}"
    linear = [
        (f"{ours}embeddings.norm", f"{prefix}embeddings.LayerNorm"),
        (f"{block}.attention.query", f"{layer}.attention.self.query"),
        (f"{block}.attention.key", f"{layer}.attention.self.key"),
        (f"{block}.attention.value", f"{layer}.attention.self.value"),
        (f"{block}.attention.output", f"{layer}.attention.output.dense"),
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
    return each([*tables, *pairs(linear, bias=True)], config.layers)


def _masked(config: EncoderConfig, settings: Settings) -> MaskedLanguageModel:
    if config.mlp != "gelu":
        raise UnsupportedError(f"{settings.where}: a head for masked tokens has hidden_act='gelu' in regard's model")
    return MaskedLanguageModel(Encoder(config))


def _classifier(config: EncoderConfig, settings: Settings) -> Classifier:
    labels = settings.values.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else settings.size("num_labels", 2)
    settings.check()
    return Classifier(Encoder(config), classes=classes)


def _classes(model: Classifier) -> dict[str, object]:
    count = model.output.out_features
    return {
        "id2label": {str(at): f"LABEL_{at}" for at in range(count)},
        "label2id": {f"LABEL_{at}": at for at in range(count)},
    }


def _forms(
    name: str, title: str, masked: list[tuple[str, str]], bias: str, decoder: str, classes: list[tuple[str, str]]
) -> tuple[Form, ...]:
    prefix, pooler = f"{name}.", (".pooler.dense.weight", ".pooler.dense.bias")
    ignored = (".embeddings.position_ids",)
    return (
        Form(
            titles=(f"{title}Model",),
            model=Encoder,
            build=lambda config, settings: Encoder(config),
            weights=lambda config: _blocks(config, prefix, ours=""),
            bare=True,
            ignored=(*ignored, *pooler),
        ),
        Form(
            titles=(f"{title}ForMaskedLM", f"{title}ForPreTraining"),
            model=MaskedLanguageModel,
            build=_masked,
            weights=lambda config: [*_blocks(config, prefix), *pairs(masked, bias=True), Weight("bias", bias)],
            ignored=(*ignored, *pooler, "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
            copies={f"{decoder}.weight": f"{prefix}embeddings.word_embeddings.weight", f"{decoder}.bias": bias},
        ),
        Form(
            titles=(f"{title}ForSequenceClassification",),
            model=Classifier,
            build=_classifier,
            weights=lambda config: [*_blocks(config, prefix), *pairs(classes, bias=True)],
            ignored=ignored,
            settings=_classes,
        ),
    )


BERT = Architecture(
    name="bert",
    config=lambda settings: _encoder(settings, offset=0),
    settings=_bert_settings,
    forms=_forms(
        "bert",
        "Bert",
        masked=[("transform", "cls.predictions.transform.dense"), ("norm", "cls.predictions.transform.LayerNorm")],
        bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
        classes=[("pooler", "bert.pooler.dense"), ("output", "classifier")],
    ),
    prefix="bert.",
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)

ROBERTA = Architecture(
    name="roberta",
    config=lambda settings: _encoder(settings, offset=int(settings.number("pad_token_id", 1)) + 1),
    settings=_roberta_settings,
    forms=_forms(
        "roberta",
        "Roberta",
        masked=[("transform", "lm_head.dense"), ("norm", "lm_head.layer_norm")],
        bias="lm_head.bias",
        decoder="lm_head.decoder",
        classes=[("pooler", "classifier.dense"), ("output", "classifier.out_proj")],
    ),
    prefix="roberta.",
)
