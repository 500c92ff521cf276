"""BART: names and configuration. Its position tables have two rows before the first token's."""

from regard.integrations.architectures._base import (
    Architecture,
    AttentionModule,
    Form,
    Key,
    Table,
    Widths,
    activation,
    pairs,
    token,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import EncoderDecoder, EncoderDecoderConfig

_TABLE = Table(
    "bart",
    EncoderDecoderConfig,
    position="learned",
    keys={
        "vocab_size": Key("vocab_size", 50265),
        "dim": Key("d_model", 1024),
        "heads": Key("encoder_attention_heads"),
        "layers": Key("decoder_layers", 12, Settings.layers),
        "encoder_layers": Key("encoder_layers", 12, Settings.layers),
        "mlp": Key("activation_function", "gelu", activation),
        "mlp_dim": Key("encoder_ffn_dim"),
        "max_length": Key("max_position_embeddings", 1024),
        "dropout": Key("dropout", 0.1, Settings.number),
        "attention_dropout": Key("attention_dropout", 0.0, Settings.number),
        "start_token": Key("decoder_start_token_id", 2, token),
        "end_token": Key("eos_token_id", 2, token),
    },
    fixed={
        "position_offset": 2,
        "embedding_norm": True,
        "norm": "post",
        "norm_kind": "layer",
        "norm_eps": 1e-5,
        "tied": True,
        "output_bias": True,
        "bias": True,
        "logit_scale": 1.0,
        "source_vocab_size": None,
    },
    only={
        "normalize_before": False,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": False,
        "normalize_embedding": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    },
)


def _config(settings: Settings) -> EncoderDecoderConfig:
    found = _TABLE.read(settings)
    for name in ("attention_heads", "ffn_dim"):
        settings.one_of(f"encoder_{name}", f"decoder_{name}")
    settings.choice("num_hidden_layers", [found["encoder_layers"]], found["encoder_layers"])
    settings.get("is_decoder")  # of no use there
    scaled = settings.flag("scale_embedding", False)
    return _TABLE.config(settings, found | {"embedding_scale": found["dim"] ** 0.5 if scaled else None})


def _settings(config: EncoderDecoderConfig) -> dict[str, object]:
    root = config.dim**0.5
    settings = _TABLE.settings(config, embedding_scale=(None, 1.0, root), projection_bias=(None, True))
    return {
        **settings,
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.mlp_width,
        "activation_dropout": 0.0,
        "scale_embedding": config.embedding_scale == root,
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
