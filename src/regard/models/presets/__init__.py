"""Published model shapes by name: functions in a few files by kind. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from regard.core.errors import ConfigError, nearest
from regard.models.presets import decoders, encoder_decoders, encoders, images, segments, units
from regard.models.presets._preset import Preset

_TABLE: Mapping[str, Preset] = {
    name: found
    for module in (decoders, encoder_decoders, encoders, images, segments, units)
    for name, found in vars(module).items()
    if isinstance(found, Preset) and not name.startswith("_")
}


def names() -> list[str]:
    """Registered presets.

    Example:
        >>> "gpt" in names()
        True
    """
    return sorted(_TABLE)


def function(name: str) -> Preset:
    """The preset of a name: keyword arguments in, a configuration of the `kind` out.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in _TABLE:
        raise ConfigError(f"unknown preset {name!r}: {nearest(name, _TABLE)}")
    return _TABLE[name]


def kind(name: str) -> type[Any]:
    """The kind of configuration that a preset is, which says what model is built from it.

    Raises:
        ConfigError: an unknown name.

    Example:
        >>> kind("gpt").__name__, kind("bert").__name__, kind("t5").__name__
        ('ModelConfig', 'EncoderConfig', 'EncoderDecoderConfig')
    """
    return function(name).kind


def build(name: str, **overrides: object) -> Any:
    """The configuration of a preset.

    Args:
        name: a preset.
        overrides: any argument of the preset and any field of its `kind`; arguments reach the preset, so that fields it
            derives from them (the MLP width of llama) follow.

    Raises:
        ConfigError: an unknown name, an unknown field, or values that do not fit together.

    Example:
        >>> build("gpt", layers=2, dim=64, heads=2).mlp_width
        256
        >>> build("performer", num_features=64).attention
        ("performer(num_features=64, feature_map='positive')",)
    """
    return function(name)(**overrides)
