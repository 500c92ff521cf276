"""BART: names and configuration. Its position tables have two rows before the first token's."""

from regard.integrations.architectures._base import (
    ACTIVATIONS,
    Architecture,
    AttentionModule,
    Form,
    Widths,
    activation,
    pairs,
    require,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import EncoderDecoder, EncoderDecoderConfig

_POSITION_OFFSET = 2


def _config(settings: Settings) -> EncoderDecoderConfig:
    dim = settings.axis("d_model", 1024)
    heads = settings.one_of("encoder_attention_heads", "decoder_attention_heads")
    width = settings.one_of("encoder_ffn_dim", "decoder_ffn_dim")
    settings.divides("encoder_attention_heads", heads, "d_model", dim)
    act = settings.choice("activation_function", list(ACTIVATIONS), "gelu")
    for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits", "static_position_embeddings"):
        settings.choice(name, [False], False)
    for name in ("normalize_embedding", "tie_word_embeddings", "is_encoder_decoder"):
        settings.choice(name, [True], True)
    layers = settings.layers("encoder_layers", 12)
    settings.choice("num_hidden_layers", [layers], layers)
    settings.get("is_decoder")  # of no use there
    config = {
        "vocab_size": settings.axis("vocab_size", 50265),
        "layers": settings.layers("decoder_layers", 12),
        "encoder_layers": layers,
        "max_length": settings.axis("max_position_embeddings", 1024),
        "dropout": settings.number("dropout", 0.1),
        "attention_dropout": settings.number("attention_dropout", 0.0),
        "start_token": int(settings.number("decoder_start_token_id", 2)),
        "end_token": int(settings.number("eos_token_id", 2)),
    }
    scaled = settings.flag("scale_embedding", False)
    settings.check()
    return EncoderDecoderConfig(
        **config,  # type: ignore[arg-type]
        dim=dim,
        heads=heads,
        mlp=ACTIVATIONS[str(act)],
        mlp_dim=width,
        position="learned",
        position_offset=_POSITION_OFFSET,
        embedding_scale=dim**0.5 if scaled else None,
        embedding_norm=True,
        norm="post",
        norm_kind="layer",
        tied=True,
        output_bias=True,
        bias=True,
    )


def _settings(config: EncoderDecoderConfig) -> dict[str, object]:
    require(
        config,
        "bart",
        position="learned",
        position_offset=_POSITION_OFFSET,
        norm="post",
        norm_kind="layer",
        norm_eps=1e-5,
        embedding_norm=True,
        embedding_scale=(None, 1.0, config.dim**0.5),
        bias=True,
        projection_bias=(None, True),
        kv_heads=(None, config.heads),
        key_dim=config.dim // config.heads,
        source_vocab_size=None,
        tied=True,
        output_bias=True,
        logit_scale=1.0,
        mlp=tuple(dict.fromkeys(ACTIVATIONS.values())),
    )
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", config.heads), ("ffn_dim", config.mlp_width))
    }
    return {
        **sides,
        "vocab_size": config.vocab_size,
        "d_model": config.dim,
        "encoder_layers": config.encoder.layers,
        "decoder_layers": config.layers,
        "activation_function": activation(config),
        "max_position_embeddings": config.max_length,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": config.embedding_scale == config.dim**0.5,
        "decoder_start_token_id": config.start_token,
        "eos_token_id": config.end_token,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def _attention(ours: str, theirs: str) -> list[tuple[str, str]]:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return [(f"{ours}.projections.{our_name}", f"{theirs}.{their_name}") for our_name, their_name in names.items()]


def _side(ours: str, theirs: str, *, cross: bool) -> list[Weight]:
    block, layer = f"{ours}blocks.{{layer}}", f"{theirs}.layers.{{layer}}"
    modules = [
        (f"{ours}embeddings.norm", f"{theirs}.layernorm_embedding"),
        *_attention(f"{block}.attention", f"{layer}.self_attn"),
        (f"{block}.attention_norm", f"{layer}.self_attn_layer_norm"),
        (f"{block}.mlp.up", f"{layer}.fc1"),
        (f"{block}.mlp.down", f"{layer}.fc2"),
        (f"{block}.mlp_norm", f"{layer}.final_layer_norm"),
    ]
    if cross:
        modules += _attention(f"{block}.cross", f"{layer}.encoder_attn")
        modules.append((f"{block}.cross_norm", f"{layer}.encoder_attn_layer_norm"))
    table = Weight(f"{ours}embeddings.position.table", f"{theirs}.embed_positions.weight")
    return [table, *pairs(modules, bias=True)]


def _weights(config: EncoderDecoderConfig) -> list[Weight]:
    return [
        Weight("embeddings.table.weight", "model.shared.weight"),
        Weight("bias", "final_logits_bias", leading=1),
        *each(_side("encoder.", "model.encoder", cross=False), config.encoder.layers),
        *each(_side("", "model.decoder", cross=True), config.layers),
    ]


BART = Architecture(
    name="bart",
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("BartForConditionalGeneration",),
            model=EncoderDecoder,
            build=lambda config, settings: EncoderDecoder(config),
            weights=_weights,
            copies={
                "model.encoder.embed_tokens.weight": "model.shared.weight",
                "model.decoder.embed_tokens.weight": "model.shared.weight",
                "lm_head.weight": "model.shared.weight",
            },
        ),
    ),
    prefix="model.",
    modules={
        "BartAttention": AttentionModule(
            widths=lambda module: Widths(module.num_heads, module.num_heads, module.head_dim),
            cross=lambda module: module.is_decoder and not module.is_causal,
        )
    },
)
