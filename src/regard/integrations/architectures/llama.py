"""Llama: names, configuration, and the same in GGUF."""

from regard.integrations.architectures._base import Gguf
from regard.integrations.architectures._decoders import decoder, decoder_config, decoder_settings, decoder_table
from regard.integrations.weights import Settings, Weight, each
from regard.models.config import ModelConfig

_TABLE = decoder_table("llama")


def _config(settings: Settings) -> ModelConfig:
    bias = settings.flag("attention_bias", False)
    settings.choice("mlp_bias", [bias], False)
    settings.choice("rope_interleaved", [False], False)
    return decoder_config(_TABLE, settings, bias=bias)


def _settings(config: ModelConfig) -> dict[str, object]:
    settings = decoder_settings(_TABLE, config, projection_bias=(None, config.bias))
    return {**settings, "attention_bias": config.bias, "mlp_bias": config.bias}


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
}
"""Setting -> GGUF metadata key below `llama.`"""


def _gguf_check(settings: Settings) -> None:
    """Note keys that llama.cpp applies and our Llama has not: it scales positions by a factor also without a type."""
    width = settings.axis("head_dim", settings.axis("hidden_size") // settings.axis("num_attention_heads"))
    settings.choice("attention.causal", [True], True)
    settings.choice("rope.scaling.type", ["none"], "none")
    settings.choice("rope.scaling.factor", [1, 0], 1)
    for key in ("rope.dimension_count", "attention.value_length"):
        settings.choice(key, [width], width)
    settings.get("tensor_data_layout")  # of no use there


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


LLAMA = decoder(
    _TABLE,
    "Llama",
    config=_config,
    settings=_settings,
    gguf=Gguf(keys=_GGUF_KEYS, weights=_gguf_weights, check=_gguf_check),
)
