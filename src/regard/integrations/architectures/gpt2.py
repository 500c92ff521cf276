"""GPT-2: names and configuration. Its linear layers are stored (in, out), and one tensor holds q, k and v."""

from regard.integrations.architectures._base import (
    ACTIVATIONS,
    Architecture,
    AttentionModule,
    Form,
    Widths,
    activation,
    require,
)
from regard.integrations.weights import Settings, Weight, each
from regard.models import LanguageModel
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    dim, heads = settings.axis("n_embd", 768), settings.axis("n_head", 12)
    settings.divides("n_head", heads, "n_embd", dim)
    act = settings.choice("activation_function", list(ACTIVATIONS), "gelu_new")
    settings.choice("scale_attn_weights", [True], True)
    settings.choice("scale_attn_by_inverse_layer_idx", [False], False)
    settings.choice("add_cross_attention", [False], False)
    settings.choice("is_causal", [True], True)
    dropouts = {name: settings.number(name, 0.1) for name in ("embd_pdrop", "resid_pdrop")}
    if len(set(dropouts.values())) > 1:
        settings.problems.append(f"embd_pdrop and resid_pdrop are one number in regard's model, got {dropouts}")
    config = {
        "vocab_size": settings.axis("vocab_size", 50257),
        "layers": settings.layers("n_layer", 12),
        "mlp_dim": settings.axis("n_inner", 4 * dim),
        "max_length": settings.axis("n_positions", 1024),
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
        mlp=ACTIVATIONS[str(act)],
        norm_kind="layer",
        tied=tied,
        bias=True,
    )


def _settings(config: ModelConfig) -> dict[str, object]:
    require(
        config,
        "gpt2",
        position="learned",
        norm="pre",
        norm_kind="layer",
        bias=True,
        embedding_scale=(None, 1.0),
        position_offset=0,
        kv_heads=(None, config.heads),
        key_dim=config.dim // config.heads,
        mlp=tuple(dict.fromkeys(ACTIVATIONS.values())),
    )
    return {
        "n_embd": config.dim,
        "n_head": config.heads,
        "n_layer": config.layers,
        "n_inner": config.mlp_width,
        "n_positions": config.max_length,
        "activation_function": activation(config),
        "layer_norm_epsilon": config.norm_eps,
        "attn_pdrop": config.attention_dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab_size,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    layer, block = "transformer.h.{layer}", "blocks.{layer}"
    parts = [(f"{block}.attention.projections.{name}", (at, 3)) for at, name in enumerate(("query", "key", "value"))]
    weights = [
        Weight("embeddings.table.weight", "transformer.wte.weight"),
        Weight("embeddings.position.table", "transformer.wpe.weight"),
    ]
    for kind in ("weight", "bias"):
        flip = kind == "weight"
        weights += [
            Weight(f"{block}.attention_norm.{kind}", f"{layer}.ln_1.{kind}"),
            *(Weight(f"{to}.{kind}", f"{layer}.attn.c_attn.{kind}", transposed=flip, part=part) for to, part in parts),
            Weight(f"{block}.attention.projections.output.{kind}", f"{layer}.attn.c_proj.{kind}", transposed=flip),
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
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("GPT2LMHeadModel", "GPT2Model"),
            model=LanguageModel,
            build=lambda config, settings: LanguageModel(config),
            weights=_weights,
            ignored=(".attn.bias", ".attn.masked_bias"),
            copies={"lm_head.weight": "transformer.wte.weight"},
        ),
    ),
    prefix="transformer.",
    modules={
        "GPT2Attention": AttentionModule(
            widths=lambda module: Widths(module.num_heads, module.num_heads, module.head_dim),
            cross=lambda module: module.is_cross_attention,
        )
    },
)
