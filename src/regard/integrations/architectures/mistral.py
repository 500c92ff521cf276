"""Mistral: Llama whose tokens may see a window; names and configuration."""

from regard import specs
from regard.attention.sparse.local import Local
from regard.integrations.architectures._base import Architecture, AttentionModule
from regard.integrations.architectures._decoders import decoder_config, decoder_form, decoder_settings, widths
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    window = None if settings.get("sliding_window", 4096) is None else settings.size("sliding_window", 4096)
    return decoder_config(settings, window=window, kv_heads=8, max_length=131072)


def _settings(config: ModelConfig) -> dict[str, object]:
    spec = specs.parse(config.attention[0])
    windowed = spec.name == "local" and set(spec.options) <= {"window"}  # without a dilation or a scale
    attention = str(spec) if windowed else "local(window=w)"
    settings = decoder_settings(config, "mistral", attention=attention, bias=False, projection_bias=(None, False))
    window = spec.options.get("window", Local.defaults["window"])
    assert isinstance(window, int)
    return {**settings, "sliding_window": window + 1}


MISTRAL = Architecture(
    name="mistral",
    config=_config,
    settings=_settings,
    forms=(decoder_form("Mistral"),),
    prefix="model.",
    modules={"MistralAttention": AttentionModule(widths)},
)
