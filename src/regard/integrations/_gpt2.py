"""GPT-2: names and configuration. Its linear layers are stored (in, out), and one tensor holds q, k and v."""

from regard import specs
from regard.errors import UnsupportedError
from regard.integrations._architectures import Architecture, require
from regard.integrations._weights import Settings, Weight, each
from regard.models.config import MlpKind, ModelConfig

_ACTIVATIONS: dict[str, MlpKind] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}


def _config(settings: Settings) -> ModelConfig:
    dim, heads = settings.size("n_embd", 768), settings.size("n_head", 12)
    settings.divides("n_head", heads, "n_embd", dim)
    activation = settings.choice("activation_function", list(_ACTIVATIONS), "gelu_new")
    settings.choice("scale_attn_weights", [True], True)
    settings.choice("scale_attn_by_inverse_layer_idx", [False], False)
    settings.choice("add_cross_attention", [False], False)
    dropouts = {name: settings.number(name, 0.1) for name in ("embd_pdrop", "resid_pdrop")}
    if len(set(dropouts.values())) > 1:
        settings.problems.append(f"embd_pdrop and resid_pdrop are one number in regard's model, got {dropouts}")
    config = {
        "vocab_size": settings.size("vocab_size", 50257),
        "layers": settings.size("n_layer", 12),
        "mlp_dim": settings.size("n_inner", 4 * dim),
        "max_length": settings.size("n_positions", 1024),
        "norm_eps": settings.number("layer_norm_epsilon", 1e-5),
        "attention_dropout": settings.number("attn_pdrop", 0.1),
        "dropout": dropouts["resid_pdrop"],
    }
    tied = settings.flag("tie_word_embeddings", True)
    settings.check()
    return ModelConfig(
        **config,  # type: ignore[arg-type]
        dim=dim,
        heads=heads,
        position="learned",
        mlp=_ACTIVATIONS[str(activation)],
        norm_kind="layer",
        tied=tied,
        bias=True,
    )


def _settings(config: ModelConfig) -> dict[str, object]:
    require(config, "gpt2", norm="pre", norm_kind="layer", bias=True, short_convolution=0)
    if specs.parse(config.position).name != "learned" or config.kv_heads not in (None, config.heads):
        raise UnsupportedError(
            f"this model cannot be written as gpt2: position={config.position!r} and kv_heads={config.kv_heads}, "
            "not learned and None"
        )
    named = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    if config.mlp not in named:
        raise UnsupportedError(f"this model cannot be written as gpt2: mlp={config.mlp!r}, not {', '.join(named)}")
    return {
        "n_embd": config.dim,
        "n_head": config.heads,
        "n_layer": config.layers,
        "n_inner": config.mlp_width,
        "n_positions": config.max_length,
        "activation_function": named[config.mlp],
        "layer_norm_epsilon": config.norm_eps,
        "attn_pdrop": config.attention_dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab_size,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    layer, block = "transformer.h.{layer}", "blocks.{layer}"
    parts = [(f"{block}.attention.{name}", (at, 3)) for at, name in enumerate(("query", "key", "value"))]
    weights = [Weight("embedding.weight", "transformer.wte.weight"), Weight("position.table", "transformer.wpe.weight")]
    for kind in ("weight", "bias"):
        flip = kind == "weight"
        weights += [
            Weight(f"{block}.attention_norm.{kind}", f"{layer}.ln_1.{kind}"),
            *(Weight(f"{to}.{kind}", f"{layer}.attn.c_attn.{kind}", transposed=flip, part=part) for to, part in parts),
            Weight(f"{block}.attention.output.{kind}", f"{layer}.attn.c_proj.{kind}", transposed=flip),
            Weight(f"{block}.mlp_norm.{kind}", f"{layer}.ln_2.{kind}"),
            Weight(f"{block}.mlp.up.{kind}", f"{layer}.mlp.c_fc.{kind}", transposed=flip),
            Weight(f"{block}.mlp.down.{kind}", f"{layer}.mlp.c_proj.{kind}", transposed=flip),
            Weight(f"norm.{kind}", f"transformer.ln_f.{kind}"),
        ]
    if not config.tied:
        weights.append(Weight("output.weight", "lm_head.weight"))
    return each(weights, config.layers)


GPT2 = Architecture(
    name="gpt2",
    title="GPT2LMHeadModel",
    config=_config,
    settings=_settings,
    weights=_weights,
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
