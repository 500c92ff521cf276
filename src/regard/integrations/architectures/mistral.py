"""Mistral: Llama whose tokens may see a window; names and configuration."""

from regard import specs
from regard.attention.sparse.local import Local
from regard.integrations.architectures._base import Architecture, AttentionModule
from regard.integrations.architectures._decoders import decoder_config, decoder_form, decoder_settings, widths
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    given = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072, **settings.values}
    if given["num_key_value_heads"] is None:
        del given["num_key_value_heads"]
    own = Settings(given, settings.where, settings.tensors)
    window = None if given["sliding_window"] is None else own.size("sliding_window")
    return decoder_config(own, window=window)


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
