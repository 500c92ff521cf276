"""Nystromformer: names and configuration; its networks are BERT's, with landmarks and smoothed values.

In transformers the first step of the inverse has the largest norm of the whole batch, padding cannot be masked, and the
length is a setting. Here a row is what it is there alone, and padding and length are free.
"""

from dataclasses import replace

from regard import specs
from regard.attention.lowrank.nystrom import Nystrom
from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture, Key, activation
from regard.integrations.architectures._encoders import (
    MASKED,
    Network,
    encoder_config,
    encoder_forms,
    encoder_settings,
    encoder_table,
    mlp_activation,
)
from regard.integrations.weights import Settings, Weight
from regard.models import Encoder, EncoderConfig

_OFFSET = 2
"""rows of their position table before the first token's, which `max_position_embeddings` does not count"""

_TABLE = encoder_table(
    "nystromformer",
    offset=_OFFSET,
    keys={
        "mlp": Key("hidden_act", "gelu_new", activation),
        "vocab_size": Key("vocab_size", 30000),
        "max_length": Key("max_position_embeddings", 510),
        "norm_eps": Key("layer_norm_eps", 1e-5, Settings.number),
    },
)


def _config(settings: Settings) -> EncoderConfig:
    landmarks, length = settings.size("num_landmarks", 64), settings.size("segment_means_seq_len", 64)
    settings.divides("num_landmarks", landmarks, "segment_means_seq_len", length)
    own_norm = settings.flag("inv_coeff_init_option", False)
    width = settings.axis("conv_kernel_size", 65)
    if width % 2 == 0:
        settings.problems.append(f"conv_kernel_size={width} is even, and its values are no longer one for each token")
    config = encoder_config(_TABLE, settings)
    rebuilt = f"num_landmarks={landmarks}, norm='{'matrix' if own_norm else 'heads'}'"
    # Where landmarks are as many as tokens theirs is the softmax itself, whatever the length of a text.
    chosen = "num_landmarks=None, pinv='exact'" if landmarks == length else rebuilt
    return replace(
        config,
        attention=(f"nystrom({chosen}, convolution={width})",),
        attention_dropout=0.0,  # theirs has the setting, and nothing that reads it
    )


def _settings(config: EncoderConfig) -> dict[str, object]:
    return {**encoder_settings(_TABLE, config, attention=None, projections="all"), "pad_token_id": 1}


def _landmarks(network: Network) -> dict[str, object]:
    """Their settings of the attention: one for all layers, with the iterations and the norm that they have."""
    encoder = network if isinstance(network, Encoder) else network.encoder
    found = set()
    for each in encoder.mechanisms:
        if not isinstance(each, Nystrom):
            raise UnsupportedError("this model cannot be written as nystromformer: not every layer is nystrom")
        iterated = each.num_landmarks is None or (each.pinv, each.iterations, each.tolerance) == ("iterative", 6, None)
        if not iterated:
            raise UnsupportedError(
                "this model cannot be written as nystromformer: not every layer has six iterations without a tolerance"
            )
        found.add((each.num_landmarks, each.norm, each.convolution))
    if len(found) > 1:
        raise UnsupportedError("this model cannot be written as nystromformer: its layers have different landmarks")
    ((landmarks, norm, width),) = found
    if width is None:
        raise UnsupportedError("this model cannot be written as nystromformer: it has no convolution")
    if landmarks is not None and norm == "matrix":
        raise UnsupportedError(
            "this model cannot be written as nystromformer: norm='matrix', and transformers begins with the largest "
            "norm of all heads"
        )
    # Theirs reads texts of one length alone, a multiple of the landmarks: the longest that there are positions for.
    runs = 1 if landmarks is None else encoder.config.max_length // landmarks
    if landmarks is not None and runs < 2:
        raise UnsupportedError(
            f"this model cannot be written as nystromformer: max_length={encoder.config.max_length}, not at least "
            f"twice num_landmarks={landmarks}"
        )
    return {
        "num_landmarks": landmarks or 64,
        "segment_means_seq_len": (landmarks or 64) * runs,
        "conv_kernel_size": width,
        "inv_coeff_init_option": False,
    }


def _filters(config: EncoderConfig) -> tuple[Weight, ...]:
    """The convolution of an attention module, (heads, 1, width, 1) there."""
    width = specs.parse(config.attention[0]).options.get("convolution")
    return (Weight("filters", "conv.weight", kernel=(1, width, 1)),) if isinstance(width, int) else ()


NYSTROMFORMER = Architecture(
    name="nystromformer",
    config=_config,
    settings=_settings,
    forms=encoder_forms(
        "nystromformer.",
        "Nystromformer",
        masked=MASKED,
        transform=mlp_activation,
        pooled=mlp_activation,
        mechanism=_filters,
        settings=_landmarks,
    ),
    prefix="nystromformer.",
)
