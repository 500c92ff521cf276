"""Qwen2: Llama whose queries, keys and values have biases; names and configuration."""

from regard.integrations.architectures._base import Architecture, AttentionModule
from regard.integrations.architectures._decoders import decoder_config, decoder_form, decoder_settings, widths
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    settings.choice("use_sliding_window", [False], False)
    for name in ("sliding_window", "max_window_layers"):
        settings.get(name)  # of no use without that
    kinds = settings.get("layer_types")
    if kinds not in (None, ["full_attention"] * settings.layers("num_hidden_layers")):
        settings.problems.append(f"layer_types={kinds!r:.80}: regard's model has full_attention in every layer")
    return decoder_config(settings, projection_bias=True, kv_heads=32, max_length=32768)


def _settings(config: ModelConfig) -> dict[str, object]:
    settings = decoder_settings(config, "qwen2", bias=False, projection_bias=True)
    return {**settings, "use_sliding_window": False}


QWEN2 = Architecture(
    name="qwen2",
    config=_config,
    settings=_settings,
    forms=(decoder_form("Qwen2"),),
    prefix="model.",
    modules={"Qwen2Attention": AttentionModule(widths)},
)
