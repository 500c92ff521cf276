"""Qwen2: Llama whose queries, keys and values have biases; names and configuration."""

from regard.integrations.architectures._base import Architecture, AttentionModule
from regard.integrations.architectures._decoders import decoder_config, decoder_form, decoder_settings, widths
from regard.integrations.weights import Settings
from regard.models.config import ModelConfig


def _config(settings: Settings) -> ModelConfig:
    settings.choice("use_sliding_window", [False], False)
    given = {"num_key_value_heads": 32, "max_position_embeddings": 32768, **settings.values}
    if given["num_key_value_heads"] is None:
        del given["num_key_value_heads"]
    own = Settings(given, settings.where, settings.tensors)
    own.problems += settings.problems
    return decoder_config(own, projection_bias=True)


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
