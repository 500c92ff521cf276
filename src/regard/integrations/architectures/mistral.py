"""Mistral: Llama whose tokens may see a window; names and configuration."""

from regard import specs
from regard.attention.sparse.local import Local
from regard.integrations.architectures._decoders import decoder, decoder_config, decoder_settings, decoder_table
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig

_TABLE = decoder_table("mistral", max_length=131072)


def _config(settings: Settings) -> ModelConfig:
    window = None if settings.get("sliding_window", 4096) is None else settings.size("sliding_window", 4096)
    attention = "softmax" if window is None else f"local(window={window - 1})"  # theirs counts the token itself
    return decoder_config(_TABLE, settings, kv_heads=8, attention=(attention,), bias=False)


def _settings(config: ModelConfig) -> dict[str, object]:
    spec = specs.parse(config.attention[0])
    windowed = spec.name == "local" and set(spec.options) <= {"window"}  # without a dilation or a scale
    attention = str(spec) if windowed else "local(window=w)"
    settings = decoder_settings(_TABLE, config, attention=attention, bias=False, projection_bias=(None, False))
    window = spec.options.get("window", Local.defaults["window"])
    assert isinstance(window, int)
    return {**settings, "sliding_window": window + 1}


MISTRAL = decoder(_TABLE, "Mistral", config=_config, settings=_settings)
