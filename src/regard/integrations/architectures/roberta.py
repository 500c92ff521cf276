"""RoBERTa: names and configuration."""

from regard.integrations.architectures._base import Architecture
from regard.integrations.architectures._encoders import (
    CLASSES_ROBERTA,
    MASKED_ROBERTA,
    attention_modules,
    encoder_forms,
    roberta_config,
    roberta_settings,
)

ROBERTA = Architecture(
    name="roberta",
    config=roberta_config,
    settings=roberta_settings,
    forms=encoder_forms(
        "roberta.",
        "Roberta",
        masked=MASKED_ROBERTA,
        bias="lm_head.bias",
        decoder="lm_head.decoder",
        classes=CLASSES_ROBERTA,
    ),
    prefix="roberta.",
    modules=attention_modules("Roberta"),
)
