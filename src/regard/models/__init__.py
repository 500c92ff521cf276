"""Language models: a configuration, the blocks, the decoder, and text from it. Names are imported on first use."""

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "ModelConfig": "regard.models.config",
    "LanguageModel": "regard.models.decoder",
    "ModelOutput": "regard.models.decoder",
    "ModelState": "regard.models.decoder",
}

__all__ = ["LanguageModel", "ModelConfig", "ModelOutput", "ModelState"]

if TYPE_CHECKING:
    from regard.models.config import ModelConfig
    from regard.models.decoder import LanguageModel, ModelOutput, ModelState


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.models' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
