"""BERT: names and configuration."""

from regard.integrations.architectures._base import Architecture
from regard.integrations.architectures._encoders import (
    MASKED,
    attention_modules,
    encoder_config,
    encoder_forms,
    encoder_settings,
    encoder_table,
    mlp_activation,
)
from regard.models import EncoderConfig

_TABLE = encoder_table("bert")


def _settings(config: EncoderConfig) -> dict[str, object]:
    return {**encoder_settings(_TABLE, config), "pad_token_id": 0}


BERT = Architecture(
    name="bert",
    config=lambda settings: encoder_config(_TABLE, settings),
    settings=_settings,
    forms=encoder_forms(
        "bert.",
        "Bert",
        masked=MASKED,
        classes=[("pooler", "bert.pooler.dense"), ("output", "classifier")],
        transform=mlp_activation,
    ),
    prefix="bert.",
    modules=attention_modules("Bert"),
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
)
