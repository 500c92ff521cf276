"""Llama: names, configuration, and the same in GGUF."""

from typing import Any

from regard import specs
from regard.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture, AttentionModule, Form, Gguf, Widths, pairs, require
from regard.integrations.weights import Settings, Weight, each
from regard.models import LanguageModel
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    dim, heads = settings.axis("hidden_size"), settings.axis("num_attention_heads")
    kv_heads = settings.axis("num_key_value_heads", heads)
    head_dim = settings.axis("head_dim", dim // heads)
    settings.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    settings.choice("hidden_act", ["silu"], "silu")
    bias = settings.flag("attention_bias", False)
    settings.choice("mlp_bias", [bias], False)
    # transformers 5 keeps the base of the rotary angles in rope_parameters, earlier versions beside rope_scaling.
    rope = settings.values.get("rope_parameters") or settings.values.get("rope_scaling") or {}
    rotary = Settings(rope if isinstance(rope, dict) else {"rope_type": rope}, settings.where, {})
    rotary.choice("rope_type", ["default"], rotary.values.get("type", "default"))
    theta = rotary.number("rope_theta", settings.number("rope_theta", 10000.0))
    settings.problems += rotary.problems
    config = {
        "vocab_size": settings.axis("vocab_size"),
        "layers": settings.layers("num_hidden_layers"),
        "mlp_dim": settings.axis("intermediate_size"),
        "max_length": settings.size("max_position_embeddings", 2048),
        "norm_eps": settings.number("rms_norm_eps", 1e-6),
        "attention_dropout": settings.number("attention_dropout", 0.0),
    }
    tied = settings.flag("tie_word_embeddings", False)
    settings.check()
    return ModelConfig(
        **config,  # type: ignore[arg-type]
        dim=dim,
        heads=heads,
        head_dim=None if head_dim * heads == dim else head_dim,
        kv_heads=kv_heads,
        position=f"rotary(base={float(theta)!r}, layout=halves)",
        mlp="swiglu",
        norm_kind="rms",
        tied=tied,
        bias=bias,
    )


def _settings(config: ModelConfig) -> dict[str, object]:
    require(config, "llama", position="rotary", norm="pre", norm_kind="rms", mlp="swiglu", short_convolution=0)
    position = specs.parse(config.position)
    options = {"base": 10000.0, "layout": "halves", "fraction": 1.0, **position.options}
    if options["layout"] != "halves" or options["fraction"] != 1:
        raise UnsupportedError(
            f"this model cannot be written as llama: position={config.position!r}, not rotary(layout=halves)"
        )
    return {
        "hidden_size": config.dim,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.key_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": options["base"],
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab_size,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    layer, block = "model.layers.{layer}", "blocks.{layer}"
    linear = [
        (f"{block}.attention.projections.query", f"{layer}.self_attn.q_proj"),
        (f"{block}.attention.projections.key", f"{layer}.self_attn.k_proj"),
        (f"{block}.attention.projections.value", f"{layer}.self_attn.v_proj"),
        (f"{block}.attention.projections.output", f"{layer}.self_attn.o_proj"),
        (f"{block}.mlp.gate", f"{layer}.mlp.gate_proj"),
        (f"{block}.mlp.up", f"{layer}.mlp.up_proj"),
        (f"{block}.mlp.down", f"{layer}.mlp.down_proj"),
    ]
    rest = [
        ("embeddings.table", "model.embed_tokens"),
        (f"{block}.attention_norm", f"{layer}.input_layernorm"),
        (f"{block}.mlp_norm", f"{layer}.post_attention_layernorm"),
        ("norm", "model.norm"),
        *([] if config.tied else [("output", "lm_head")]),
    ]
    return each([*pairs(linear, bias=config.bias), *pairs(rest, bias=False)], config.layers)


def _widths(module: Any) -> Widths:
    return Widths(module.config.num_attention_heads, module.config.num_key_value_heads, module.head_dim)


_GGUF_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_scaling": "rope.scaling.type",
}
"""Setting -> GGUF metadata key below `llama.`"""


def _gguf_weights(config: ModelConfig) -> list[Weight]:
    """Our weights in a GGUF file, whose rows of q and k are stored for rotary planes of neighbouring channels."""
    layer, block = "blk.{layer}", "blocks.{layer}"
    heads, kv_heads = config.heads, config.kv_heads or config.heads
    weights = [
        Weight("embeddings.table.weight", "token_embd.weight"),
        Weight(f"{block}.attention_norm.weight", f"{layer}.attn_norm.weight"),
        Weight(f"{block}.attention.projections.query.weight", f"{layer}.attn_q.weight", heads=heads),
        Weight(f"{block}.attention.projections.key.weight", f"{layer}.attn_k.weight", heads=kv_heads),
        Weight(f"{block}.attention.projections.value.weight", f"{layer}.attn_v.weight"),
        Weight(f"{block}.attention.projections.output.weight", f"{layer}.attn_output.weight"),
        Weight(f"{block}.mlp_norm.weight", f"{layer}.ffn_norm.weight"),
        Weight(f"{block}.mlp.gate.weight", f"{layer}.ffn_gate.weight"),
        Weight(f"{block}.mlp.up.weight", f"{layer}.ffn_up.weight"),
        Weight(f"{block}.mlp.down.weight", f"{layer}.ffn_down.weight"),
        Weight("norm.weight", "output_norm.weight"),
        *([] if config.tied else [Weight("output.weight", "output.weight")]),
    ]
    return each(weights, config.layers)


LLAMA = Architecture(
    name="llama",
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("LlamaForCausalLM", "LlamaModel"),
            model=LanguageModel,
            build=lambda config, settings: LanguageModel(config),
            weights=_weights,
            ignored=("rotary_emb.inv_freq",),
            copies={"lm_head.weight": "model.embed_tokens.weight"},
        ),
    ),
    prefix="model.",
    gguf=Gguf(keys=_GGUF_KEYS, weights=_gguf_weights),
    modules={"LlamaAttention": AttentionModule(_widths)},
)
