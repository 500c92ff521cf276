"""Decoders in the shape of Llama: rotary positions, RMSNorm, a gated MLP; they differ in biases and windows."""

from typing import Any

from regard import specs
from regard.errors import UnsupportedError
from regard.integrations.architectures._base import Form, Widths, pairs, require
from regard.integrations.weights import Settings, Weight, each
from regard.models import LanguageModel
from regard.models.config import ModelConfig


def decoder_config(
    settings: Settings,
    *,
    bias: bool = False,
    projection_bias: bool | None = None,
    window: int | None = None,
    kv_heads: int | None = None,
    max_length: int = 2048,
) -> ModelConfig:
    """The decoder of a configuration.

    Args:
        settings: theirs, with what problems were found before.
        bias, projection_bias: as `ModelConfig`.
        window: tokens that one sees, itself included; None: all before it.
        kv_heads, max_length: where theirs has no such setting; kv_heads=None: one for each head.

    Raises:
        CheckpointError: every problem of the configuration.
    """
    dim, heads = settings.axis("hidden_size"), settings.axis("num_attention_heads")
    kv_heads = heads if kv_heads is None or "num_key_value_heads" in settings.values else kv_heads
    kv_heads = settings.axis("num_key_value_heads", kv_heads)
    head_dim = settings.axis("head_dim", dim // heads)
    settings.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    settings.choice("hidden_act", ["silu"], "silu")
    settings.choice("is_causal", [True], True)
    # transformers 5 keeps the base of the rotary angles in rope_parameters, earlier versions beside rope_scaling.
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    rotary = Settings(rope if isinstance(rope, dict) else {"rope_type": rope}, settings.where, {}, settings.ignore)
    rotary.choice("rope_type", ["default"], rotary.get("type", "default"))
    theta = rotary.number("rope_theta", settings.number("rope_theta", 10000.0))
    settings.problems += rotary.problems + rotary.unread()
    config = {
        "vocab_size": settings.axis("vocab_size"),
        "layers": settings.layers("num_hidden_layers"),
        "mlp_dim": settings.axis("intermediate_size"),
        "max_length": settings.size("max_position_embeddings", max_length),
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
        projection_bias=projection_bias,
        attention=("softmax",) if window is None else (f"local(window={window - 1})",),
    )


def decoder_settings(config: ModelConfig, name: str, **wanted: object) -> dict[str, object]:
    """Their settings of a decoder.

    Args:
        config: ours.
        name: of the architecture.
        wanted: as `require`.

    Raises:
        UnsupportedError: a decoder that is none of this architecture.
    """
    common = {"norm": "pre", "norm_kind": "rms", "mlp": "swiglu"}
    common |= {"embedding_scale": (None, 1.0), "embedding_norm": False, "position_offset": 0}
    require(config, name, position="rotary", **{**common, **wanted})  # type: ignore[arg-type]
    position = specs.parse(config.position)
    options = {"base": 10000.0, "layout": "halves", "fraction": 1.0, **position.options}
    if options["layout"] != "halves" or options["fraction"] != 1:
        raise UnsupportedError(
            f"this model cannot be written as {name}: position={config.position!r}, not rotary(layout=halves)"
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
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab_size,
    }


def decoder_weights(config: ModelConfig) -> list[Weight]:
    """The weights of a decoder."""
    layer, block = "model.layers.{layer}", "blocks.{layer}"
    projections = [
        (f"{block}.attention.projections.query", f"{layer}.self_attn.q_proj"),
        (f"{block}.attention.projections.key", f"{layer}.self_attn.k_proj"),
        (f"{block}.attention.projections.value", f"{layer}.self_attn.v_proj"),
    ]
    linear = [
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
    biased = config.bias if config.projection_bias is None else config.projection_bias
    weights = [*pairs(projections, bias=biased), *pairs(linear, bias=config.bias), *pairs(rest, bias=False)]
    return each(weights, config.layers)


def decoder_form(title: str) -> Form:
    """The network whose names in transformers begin with a title."""
    return Form(
        titles=(f"{title}ForCausalLM", f"{title}Model"),
        model=LanguageModel,
        build=lambda config, settings: LanguageModel(config),
        weights=decoder_weights,
        ignored=("rotary_emb.inv_freq",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )


def widths(module: Any) -> Widths:
    """The heads of one of transformers' attention modules."""
    return Widths(module.config.num_attention_heads, module.config.num_key_value_heads, module.head_dim)
