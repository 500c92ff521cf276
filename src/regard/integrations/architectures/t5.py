"""T5, both versions: names and configuration."""

from regard import specs
from regard.integrations.architectures._base import (
    Architecture,
    AttentionModule,
    Form,
    Key,
    Table,
    Widths,
    pairs,
    token,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import EncoderDecoder, EncoderDecoderConfig
from regard.models.block_config import GATED, MlpKind

_FEED_FORWARDS: dict[str, MlpKind] = {
    "relu": "relu",
    "gelu": "gelu",
    "gated-gelu": "geglu_tanh",  # by its name the exact GELU; the released code takes the approximation
    "gated-silu": "swiglu",
}
_ATTENTION = "softmax(scale=1.0)"


_TABLE = Table(
    "t5",
    EncoderDecoderConfig,
    position="t5_bias",
    keys={
        "vocab_size": Key("vocab_size", 32128),
        "dim": Key("d_model", 512),
        "heads": Key("num_heads", 8),
        "head_dim": Key("d_kv", 64),
        "encoder_layers": Key("num_layers", 6, Settings.layers),
        "layers": Key("num_decoder_layers", lambda found: found["encoder_layers"], Settings.layers),
        "mlp_dim": Key("d_ff", 2048),
        "max_length": Key("n_positions", 512, Settings.size),
        "norm_eps": Key("layer_norm_epsilon", 1e-6, Settings.number),
        "dropout": Key("dropout_rate", 0.1, Settings.number),
        "end_token": Key("eos_token_id", 1, token),
    },
    fixed={
        "embedding_norm": False,
        "norm": "pre",
        "norm_kind": "rms",
        "bias": False,
        "output_bias": False,
        "source_vocab_size": None,
    },
    only={"is_encoder_decoder": True},
)


def _config(settings: Settings) -> EncoderDecoderConfig:
    found = _TABLE.read(settings)
    dim, head_dim = found["dim"], found["head_dim"]
    kind = settings.choice("feed_forward_proj", list(_FEED_FORWARDS), "relu")
    buckets = settings.axis("relative_attention_num_buckets", 32)
    furthest = settings.size("relative_attention_max_distance", 128)
    act = "gelu_new" if kind == "gated-gelu" else str(kind).removeprefix("gated-")
    for name, follows in (("dense_act_fn", act), ("is_gated_act", act != kind)):
        settings.choice(name, [follows], follows)
    settings.get("is_decoder")  # of no use there
    # Version 1.1 says that the embeddings are not tied; transformers 5 writes it as tied, without the scale and with an
    # output layer.
    said = settings.flag("tie_word_embeddings", True)
    scaled = bool(settings.choice("scale_decoder_outputs", [True, False], said))
    found |= {
        "head_dim": None if head_dim * found["heads"] == dim else head_dim,
        "attention": (_ATTENTION,),
        "encoder_attention": (_ATTENTION,),
        "cross_attention": (_ATTENTION,),
        "position": f"t5_bias(num_buckets={buckets}, max_distance={furthest})",
        "mlp": _FEED_FORWARDS.get(str(kind)),
        "attention_dropout": found["dropout"],
        "start_token": token(settings, "decoder_start_token_id", settings.number("pad_token_id", 0)),
        "tied": (said and scaled) or "lm_head.weight" not in settings.tensors,
        "logit_scale": dim**-0.5 if scaled else 1.0,
    }
    return _TABLE.config(settings, found)


def _settings(config: EncoderDecoderConfig) -> dict[str, object]:
    settings = _TABLE.settings(
        config,
        attention=_ATTENTION,
        projection_bias=(None, False),
        logit_scale=(1.0, config.dim**-0.5),
        mlp=tuple(_FEED_FORWARDS.values()),
    )
    options = {"num_buckets": 32, "max_distance": 128, **specs.parse(config.position).options}
    return {
        **settings,
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "feed_forward_proj": next(theirs for theirs, ours in _FEED_FORWARDS.items() if ours == config.mlp),
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.logit_scale != 1,
        "decoder_start_token_id": config.start_token,
        "pad_token_id": config.start_token,
        "is_encoder_decoder": True,
    }


def _attention(ours: str, theirs: str) -> list[tuple[str, str]]:
    return [(f"{ours}.projections.{name}", f"{theirs}.{name[0]}") for name in ("query", "key", "value", "output")] + [
        (f"{ours}_norm", f"{theirs.rpartition('.')[0]}.layer_norm")
    ]


def _side(config: EncoderDecoderConfig, ours: str, theirs: str, *, cross: bool) -> list[Weight]:
    block, layer = f"{ours}blocks.{{layer}}", f"{theirs}.block.{{layer}}.layer"
    last = f"{layer}.{2 if cross else 1}"
    gated = config.mlp in GATED
    modules = [
        *_attention(f"{block}.attention", f"{layer}.0.SelfAttention"),
        *(_attention(f"{block}.cross", f"{layer}.1.EncDecAttention") if cross else []),
        *([(f"{block}.mlp.gate", f"{last}.DenseReluDense.wi_0")] if gated else []),
        (f"{block}.mlp.up", f"{last}.DenseReluDense.{'wi_1' if gated else 'wi'}"),
        (f"{block}.mlp.down", f"{last}.DenseReluDense.wo"),
        (f"{block}.mlp_norm", f"{last}.layer_norm"),
        (f"{ours}norm", f"{theirs}.final_layer_norm"),
    ]
    table = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [Weight(f"{ours}embeddings.position.table", table, transposed=True), *pairs(modules, bias=False)]


def _weights(config: EncoderDecoderConfig) -> list[Weight]:
    return [
        Weight("embeddings.table.weight", "shared.weight"),
        *each(_side(config, "encoder.", "encoder", cross=False), config.encoder.layers),
        *each(_side(config, "", "decoder", cross=True), config.layers),
        *([] if config.tied else [Weight("output.weight", "lm_head.weight")]),
    ]


T5 = Architecture(
    name="t5",
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"),
            model=EncoderDecoder,
            weights=_weights,
            # a table of no use that old files carry
            ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
            copies={
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
                "lm_head.weight": "shared.weight",
            },
        ),
    ),
    modules={
        "T5Attention": AttentionModule(
            widths=lambda module: Widths(module.n_heads, module.n_heads, module.key_value_proj_dim),
            cross=lambda module: module.is_decoder and not module.is_causal,
            biased=True,
        )
    },
)
