"""Longformer: names and configuration; its networks are RoBERTa's, with a window and rows of global tokens."""

from dataclasses import replace
from typing import cast

from regard.attention.sparse.longformer import Longformer
from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture
from regard.integrations.architectures._encoders import (
    MASKED_ROBERTA,
    Network,
    encoder_forms,
    encoder_table,
    roberta_config,
    roberta_settings,
)
from regard.integrations.weights import Settings
from regard.models import Classifier, Encoder, EncoderConfig

_TABLE = encoder_table("longformer", offset=None, skip_padding=True)


def _config(settings: Settings) -> EncoderConfig:
    layers, window = settings.layers("num_hidden_layers", 12), settings.get("attention_window", 512)
    widths = window if isinstance(window, list) else [window] * layers
    if len(widths) != layers:
        settings.problems.append(f"attention_window names {len(widths)} layers, not num_hidden_layers={layers}")
    odd = [width for width in widths if isinstance(width, bool) or not isinstance(width, int) or width < 2 or width % 2]
    if odd:
        settings.problems.append(f"attention_window counts both sides and is even and positive, got {odd[0]!r}")
    config = roberta_config(_TABLE, settings)
    # transformers marks the first token, and no other, when the network for classes is given no marks.
    first = int("LongformerForSequenceClassification" in str(settings.get("architectures")))
    specs = [f"longformer(window={cast(int, width) // 2}, num_global={first})" for width in widths]
    attention = tuple(specs) if len(set(specs)) > 1 else (specs[0],)
    return replace(config, attention=attention, attention_dropout=0.0, projections="global")


def _settings(config: EncoderConfig) -> dict[str, object]:
    return roberta_settings(_TABLE, config, attention=None, projections="global")


def _windows(network: Network) -> dict[str, object]:
    first, widths = int(isinstance(network, Classifier)), []
    encoder = network if isinstance(network, Encoder) else network.encoder
    for each in encoder.mechanisms:
        wanted = {"dilation": 1, "num_global": first, "scale": None}
        if not isinstance(each, Longformer) or {name: getattr(each, name) for name in wanted} != wanted:
            said = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise UnsupportedError(f"this model cannot be written as longformer: not every layer is longformer({said})")
        if each.window < 1:
            raise UnsupportedError("this model cannot be written as longformer: window=0, not at least 1")
        widths.append(2 * each.window)
    return {"attention_window": widths}


LONGFORMER = Architecture(
    name="longformer",
    config=_config,
    settings=_settings,
    forms=encoder_forms(
        "longformer.",
        "Longformer",
        masked=MASKED_ROBERTA,
        settings=_windows,
    ),
    prefix="longformer.",
)
