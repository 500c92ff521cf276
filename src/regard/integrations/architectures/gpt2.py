"""GPT-2: names and configuration. Its linear layers are stored (in, out), and one tensor holds q, k and v."""

from regard.integrations.architectures._base import Architecture, AttentionModule, Form, Key, Table, Widths, activation
from regard.integrations.weights import Settings, Weight, each
from regard.models import LanguageModel
from regard.models.config import ModelConfig

_TABLE = Table(
    "gpt2",
    ModelConfig,
    position="learned",
    keys={
        "vocab_size": Key("vocab_size", 50257),
        "dim": Key("n_embd", 768),
        "heads": Key("n_head", 12),
        "layers": Key("n_layer", 12, Settings.layers),
        "max_length": Key("n_positions", 1024),
        "mlp": Key("activation_function", "gelu_new", activation),
        "mlp_dim": Key("n_inner", lambda found: 4 * found["dim"]),
        "norm_eps": Key("layer_norm_epsilon", 1e-5, Settings.number),
        "dropout": Key("resid_pdrop", 0.1, Settings.number),
        "attention_dropout": Key("attn_pdrop", 0.1, Settings.number),
        "tied": Key("tie_word_embeddings", True, Settings.flag),
    },
    fixed={"position_offset": 0, "norm": "pre", "norm_kind": "layer", "bias": True},
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "is_causal": True,
    },
)


def _config(settings: Settings) -> ModelConfig:
    found = _TABLE.read(settings)
    dropouts = {"embd_pdrop": settings.number("embd_pdrop", 0.1), "resid_pdrop": found["dropout"]}
    if len(set(dropouts.values())) > 1:
        settings.problems.append(f"embd_pdrop and resid_pdrop are one number in regard's model, got {dropouts}")
    return _TABLE.config(settings, found)


def _settings(config: ModelConfig) -> dict[str, object]:
    return {**_TABLE.settings(config), "embd_pdrop": config.dropout}


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
