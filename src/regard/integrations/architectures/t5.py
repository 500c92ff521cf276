"""T5, both versions: names and configuration."""

from regard import specs
from regard.integrations.architectures._base import Architecture, AttentionModule, Form, Widths, pairs, require
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


def _config(settings: Settings) -> EncoderDecoderConfig:
    dim, heads = settings.axis("d_model", 512), settings.axis("num_heads", 8)
    head_dim = settings.axis("d_kv", 64)
    layers = settings.layers("num_layers", 6)
    kind = settings.choice("feed_forward_proj", list(_FEED_FORWARDS), "relu")
    buckets = settings.axis("relative_attention_num_buckets", 32)
    furthest = settings.size("relative_attention_max_distance", 128)
    act = "gelu_new" if kind == "gated-gelu" else str(kind).removeprefix("gated-")
    for name, follows in (("dense_act_fn", act), ("is_gated_act", act != kind), ("is_encoder_decoder", True)):
        settings.choice(name, [follows], follows)
    settings.get("is_decoder")  # of no use there
    # Version 1.1 says that the embeddings are not tied; transformers 5 writes it as tied, without the scale and with an
    # output layer.
    said = settings.flag("tie_word_embeddings", True)
    scaled = bool(settings.choice("scale_decoder_outputs", [True, False], said))
    tied = (said and scaled) or "lm_head.weight" not in settings.tensors
    config = {
        "vocab_size": settings.axis("vocab_size", 32128),
        "layers": settings.layers("num_decoder_layers", layers),
        "encoder_layers": layers,
        "mlp_dim": settings.axis("d_ff", 2048),
        "max_length": settings.size("n_positions", 512),
        "norm_eps": settings.number("layer_norm_epsilon", 1e-6),
        "dropout": settings.number("dropout_rate", 0.1),
        "attention_dropout": settings.number("dropout_rate", 0.1),
        "start_token": int(settings.number("decoder_start_token_id", settings.number("pad_token_id", 0))),
        "end_token": int(settings.number("eos_token_id", 1)),
    }
    settings.check()
    return EncoderDecoderConfig(
        **config,  # type: ignore[arg-type]
        dim=dim,
        heads=heads,
        head_dim=None if head_dim * heads == dim else head_dim,
        mlp=_FEED_FORWARDS[str(kind)],
        attention=(_ATTENTION,),
        encoder_attention=(_ATTENTION,),
        cross_attention=(_ATTENTION,),
        position=f"t5_bias(num_buckets={buckets}, max_distance={furthest})",
        norm="pre",
        norm_kind="rms",
        tied=tied,
        logit_scale=dim**-0.5 if scaled else 1.0,
        bias=False,
    )


def _settings(config: EncoderDecoderConfig) -> dict[str, object]:
    require(
        config,
        "t5",
        attention=_ATTENTION,
        position="t5_bias",
        norm="pre",
        norm_kind="rms",
        embedding_norm=False,
        embedding_scale=(None, 1.0),
        bias=False,
        projection_bias=(None, False),
        kv_heads=(None, config.heads),
        source_vocab_size=None,
        output_bias=False,
        logit_scale=(1.0, config.dim**-0.5),
        mlp=tuple(_FEED_FORWARDS.values()),
    )
    options = {"num_buckets": 32, "max_distance": 128, **specs.parse(config.position).options}
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.dim,
        "d_kv": config.key_dim,
        "d_ff": config.mlp_width,
        "num_layers": config.encoder.layers,
        "num_decoder_layers": config.layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": next(theirs for theirs, ours in _FEED_FORWARDS.items() if ours == config.mlp),
        "n_positions": config.max_length,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.logit_scale != 1,
        "decoder_start_token_id": config.start_token,
        "pad_token_id": config.start_token,
        "eos_token_id": config.end_token,
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
            build=lambda config, settings: EncoderDecoder(config),
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
