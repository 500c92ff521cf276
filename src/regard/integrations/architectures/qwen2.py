"""Qwen2: Llama whose queries, keys and values have biases; names and configuration."""

from regard.integrations.architectures._decoders import decoder, decoder_config, decoder_settings, decoder_table
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig

_TABLE = decoder_table("qwen2", max_length=32768)


def _config(settings: Settings) -> ModelConfig:
    settings.choice("use_sliding_window", [False], False)
    for name in ("sliding_window", "max_window_layers"):
        settings.get(name)  # of no use without that
    kinds = settings.get("layer_types")
    if kinds not in (None, ["full_attention"] * settings.layers("num_hidden_layers")):
        settings.problems.append(f"layer_types={kinds!r:.80}: regard's model has full_attention in every layer")
    return decoder_config(_TABLE, settings, kv_heads=32, bias=False, projection_bias=True)


def _settings(config: ModelConfig) -> dict[str, object]:
    settings = decoder_settings(_TABLE, config, bias=False, projection_bias=True)
    return {**settings, "use_sliding_window": False}


QWEN2 = decoder(_TABLE, "Qwen2", config=_config, settings=_settings)
