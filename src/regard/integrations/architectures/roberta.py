"""RoBERTa: names and configuration."""

from regard.integrations.architectures._base import Architecture
from regard.integrations.architectures._encoders import (
    MASKED_ROBERTA,
    attention_modules,
    encoder_forms,
    encoder_table,
    roberta_config,
    roberta_settings,
)

_TABLE = encoder_table("roberta", offset=None, skip_padding=True)

ROBERTA = Architecture(
    name="roberta",
    config=lambda settings: roberta_config(_TABLE, settings),
    settings=lambda config: roberta_settings(_TABLE, config),
    forms=encoder_forms("roberta.", "Roberta", masked=MASKED_ROBERTA),
    prefix="roberta.",
    modules=attention_modules("Roberta"),
)
