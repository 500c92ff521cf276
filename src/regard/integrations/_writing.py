"""What is written of a network: the architecture of Hugging Face that it can be, settings, its tokenizer."""

import json
from collections.abc import Mapping

from torch import nn

from regard.core.errors import UnsupportedError
from regard.integrations import architectures
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.architectures import Architecture, Config, Form
from regard.integrations.chat import ChatTemplate
from regard.text.tokenizer import BpeTokenizer


def config_of(model: nn.Module) -> Config | None:
    """The configuration of a network, or of the encoder that a head stands on."""
    config = getattr(model, "config", None) or getattr(getattr(model, "encoder", None), "config", None)
    return config if isinstance(config, Config) else None


def written(model: nn.Module) -> tuple[Architecture, Form, dict[str, object]]:
    """The architecture that the model can be written as, its network there, and its settings.

    Raises:
        UnsupportedError: none, with the reasons.
    """
    reasons: list[str] = []
    config = config_of(model)
    for architecture in architectures.every():
        for form in architecture.forms:
            if type(model) is form.model and config is not None:
                try:
                    return architecture, form, {**architecture.settings(config), **form.settings(model)}
                except UnsupportedError as error:
                    reasons.append(str(error))
    if not reasons:
        raise UnsupportedError(f"{type(model).__name__} is no model of regard that can be written")
    reasons.append("regard.integrations.pretrained.save keeps what was loaded or converted as it is, for regard itself")
    raise UnsupportedError("\n".join(reasons))


def as_json(values: object) -> bytes:
    """Settings as a file."""
    return (json.dumps(values, indent=2) + "\n").encode()


def tokenizer_file(tokenizer: PretrainedTokenizer | BpeTokenizer) -> bytes:
    """tokenizer.json, as the `tokenizers` library reads it."""
    return json.dumps(json.loads(tokenizer.to_json())["model"] | getattr(tokenizer, "limits", {})).encode()


def tokenizer_settings(known: Mapping[str, object], template: ChatTemplate | None) -> bytes:
    """tokenizer_config.json: the settings that are known, but those that name code of the publisher."""
    values = {"tokenizer_class": "PreTrainedTokenizerFast", **known}
    if values.pop("auto_map", None) is not None:
        values["tokenizer_class"] = "PreTrainedTokenizerFast"
    return as_json({**values, **template.tokens, "chat_template": template.source} if template else values)
