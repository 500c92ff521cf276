"""Models: configurations, blocks, decoder, encoder, encoder-decoder, heads, text from them. Imported on first use."""

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "Classifier": "regard.models.heads",
    "Encoder": "regard.models.encoder",
    "EncoderConfig": "regard.models.encoder_config",
    "EncoderDecoder": "regard.models.encoder_decoder",
    "EncoderDecoderConfig": "regard.models.encoder_decoder_config",
    "Fusion": "regard.models.fusion",
    "FusionClassifier": "regard.models.fusion",
    "FusionConfig": "regard.models.fusion_config",
    "LanguageModel": "regard.models.decoder",
    "MaskedLanguageModel": "regard.models.heads",
    "ModelConfig": "regard.models.config",
    "ModelOutput": "regard.models.decoder",
    "ModelState": "regard.models.decoder",
    "Regressor": "regard.models.heads",
}

__all__ = [
    "Classifier",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Fusion",
    "FusionClassifier",
    "FusionConfig",
    "LanguageModel",
    "MaskedLanguageModel",
    "ModelConfig",
    "ModelOutput",
    "ModelState",
    "Regressor",
]

if TYPE_CHECKING:
    from regard.models.config import ModelConfig
    from regard.models.decoder import LanguageModel, ModelOutput, ModelState
    from regard.models.encoder import Encoder
    from regard.models.encoder_config import EncoderConfig
    from regard.models.encoder_decoder import EncoderDecoder
    from regard.models.encoder_decoder_config import EncoderDecoderConfig
    from regard.models.fusion import Fusion, FusionClassifier
    from regard.models.fusion_config import FusionConfig
    from regard.models.heads import Classifier, MaskedLanguageModel, Regressor


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.models' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
