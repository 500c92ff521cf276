"""Decoders in the shape of Llama: rotary positions, RMSNorm, a gated MLP; they differ in biases and windows."""

from collections.abc import Callable
from typing import Any

from regard import specs
from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture, AttentionModule, Form, Gguf, Key, Table, Widths, pairs
from regard.integrations.weights import Settings, Weight, each
from regard.models import LanguageModel
from regard.models.config import ModelConfig


def decoder_table(name: str, *, max_length: int = 2048) -> Table:
    """The configuration of a decoder; `max_length` where theirs has no such setting."""
    return Table(
        name,
        ModelConfig,
        position="rotary",
        keys={
            "vocab_size": Key("vocab_size"),
            "dim": Key("hidden_size"),
            "heads": Key("num_attention_heads"),
            "kv_heads": Key("num_key_value_heads", lambda found: found["heads"]),
            "head_dim": Key("head_dim", lambda found: found["dim"] // found["heads"]),
            "layers": Key("num_hidden_layers", None, Settings.layers),
            "mlp_dim": Key("intermediate_size"),
            "max_length": Key("max_position_embeddings", max_length, Settings.size),
            "norm_eps": Key("rms_norm_eps", 1e-6, Settings.number),
            "attention_dropout": Key("attention_dropout", 0.0, Settings.number),
            "tied": Key("tie_word_embeddings", False, Settings.flag),
        },
        fixed={"position_offset": 0, "embedding_norm": False, "norm": "pre", "norm_kind": "rms", "mlp": "swiglu"},
        only={"hidden_act": "silu", "is_causal": True},
    )


def decoder_config(table: Table, settings: Settings, *, kv_heads: int | None = None, **further: object) -> ModelConfig:
    """The decoder of a configuration.

    Args:
        table: of the architecture.
        settings: theirs, with what problems were found before.
        kv_heads: where theirs has no such setting; None: one for each head.
        further: fields that are the architecture's own.

    Raises:
        CheckpointError: every problem of the configuration.
    """
    found = table.read(settings)
    heads, head_dim = found["heads"], found["head_dim"]
    if "num_key_value_heads" not in settings.values and kv_heads is not None:
        found["kv_heads"] = settings.axis("num_key_value_heads", kv_heads)
    settings.divides("num_key_value_heads", found["kv_heads"], "num_attention_heads", heads)
    # transformers 5 keeps the base of the rotary angles in rope_parameters, earlier versions beside rope_scaling.
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    rotary = Settings(rope if isinstance(rope, dict) else {"rope_type": rope}, settings.where, {}, settings.ignore)
    rotary.choice("rope_type", ["default"], rotary.get("type", "default"))
    theta = rotary.number("rope_theta", settings.number("rope_theta", 10000.0))
    settings.problems += rotary.problems + rotary.unread()
    found["head_dim"] = None if head_dim * heads == found["dim"] else head_dim
    found["position"] = f"rotary(base={float(theta)!r}, layout=halves)"
    return table.config(settings, {**found, **further})


def decoder_settings(table: Table, config: ModelConfig, **wanted: Any) -> dict[str, object]:
    """Their settings of a decoder.

    Args:
        table: of the architecture.
        config: ours.
        wanted: as `Table.settings`.

    Raises:
        UnsupportedError: a decoder that is none of this architecture.
    """
    settings = table.settings(config, **wanted)
    options = {"base": 10000.0, "layout": "halves", "fraction": 1.0, **specs.parse(config.position).options}
    if options["layout"] != "halves" or options["fraction"] != 1:
        raise UnsupportedError(
            f"this model cannot be written as {table.name}: position={config.position!r}, not rotary(layout=halves)"
        )
    return {**settings, "hidden_act": "silu", "rope_theta": options["base"]}


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


def decoder(
    table: Table,
    title: str,
    *,
    config: Callable[[Settings], ModelConfig],
    settings: Callable[[ModelConfig], dict[str, object]],
    gguf: Gguf | None = None,
) -> Architecture:
    """The architecture of a decoder, the names of whose networks in transformers begin with a title."""
    form = Form(
        titles=(f"{title}ForCausalLM", f"{title}Model"),
        model=LanguageModel,
        weights=decoder_weights,
        ignored=("rotary_emb.inv_freq",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )
    return Architecture(
        name=table.name,
        config=config,
        settings=settings,
        forms=(form,),
        prefix="model.",
        gguf=gguf,
        modules={f"{title}Attention": AttentionModule(_widths)},
    )


def _widths(module: Any) -> Widths:
    return Widths(module.config.num_attention_heads, module.config.num_key_value_heads, module.head_dim)
