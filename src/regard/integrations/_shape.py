"""What a network is but for its weights: its class, its configuration, its head."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from regard.core.errors import CheckpointError, ConfigError, UnsupportedError, nearest
from regard.core.types_of import hints, validate
from regard.integrations.architectures import Config
from regard.models import (
    Classifier,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
    MaskedLanguageModel,
    ModelConfig,
    Regressor,
)
from regard.models.heads import Activation

_CONFIGS: dict[type[nn.Module], type] = {
    LanguageModel: ModelConfig,
    Encoder: EncoderConfig,
    MaskedLanguageModel: EncoderConfig,
    Classifier: EncoderConfig,
    Regressor: EncoderConfig,
    EncoderDecoder: EncoderDecoderConfig,
}


@dataclass(frozen=True)
class Shape:
    """What `built` needs.

    kind: class of the network. config: of it, or of the encoder that a head stands on. outputs: of a head for classes
    or numbers, else 0. activation: of a head for masked tokens or classes, else None.
    """

    kind: type[nn.Module]
    config: Config
    outputs: int = 0
    activation: Activation | None = None

    @classmethod
    def of(cls, model: nn.Module) -> "Shape":
        """Of a network.

        Raises:
            UnsupportedError: a class that is not one of those here.
        """
        match model:
            case LanguageModel() | Encoder() | EncoderDecoder():
                found = cls(type(model), model.config)
            case MaskedLanguageModel():
                found = cls(type(model), model.encoder.config, activation=model.activation)
            case Classifier():
                found = cls(type(model), model.encoder.config, model.output.out_features, model.activation)
            case Regressor():
                found = cls(type(model), model.encoder.config, model.output.out_features)
            case _:
                found = None
        if found is None or found.kind not in _CONFIGS:
            raise UnsupportedError(f"{type(model).__name__} is no network of regard: {', '.join(_names())} are")
        return found

    @classmethod
    def read(cls, values: Mapping[str, object], where: str) -> "Shape":
        """From what `document` gave.

        Raises:
            CheckpointError: something else; every problem is listed.
        """
        name, given = values.get("kind"), values.get("config")
        kind = next((kind for kind in _CONFIGS if kind.__name__ == name), None)
        if kind is None or not isinstance(given, dict):
            raise CheckpointError(f"{where} has no kind of {', '.join(_names())} with a config, got {name!r}")
        problems: list[str] = []
        config = _configured(_CONFIGS[kind], given, problems)
        outputs, activation = values.get("outputs", 0), values.get("activation")
        if problems:
            raise CheckpointError(f"{where} is damaged:\n  " + "\n  ".join(problems))
        heads = {Classifier: (outputs, activation), Regressor: (outputs,), MaskedLanguageModel: (0, activation)}
        return cls(kind, config, *heads.get(kind, ()))  # type: ignore[arg-type]

    def document(self) -> dict[str, object]:
        """As JSON; fields that may be None and are, are left out."""
        config = {name: value for name, value in asdict(self.config).items() if value is not None}
        head = {"outputs": self.outputs} if self.outputs else {}
        head |= {"activation": self.activation} if self.activation else {}
        return {"kind": self.kind.__name__, "config": config, **head}

    def built(self) -> nn.Module:
        """A network of this shape, with new weights; errors as its class."""
        if isinstance(self.config, EncoderDecoderConfig):
            return EncoderDecoder(self.config)
        if isinstance(self.config, ModelConfig):
            return LanguageModel(self.config)
        encoder = Encoder(self.config)
        if self.kind is Regressor:
            return Regressor(encoder, targets=self.outputs)
        if self.activation is None:
            return encoder
        if self.kind is Classifier:
            return Classifier(encoder, classes=self.outputs, activation=self.activation)
        return MaskedLanguageModel(encoder, activation=self.activation)


def _configured(kind: type, given: Mapping[str, object], problems: list[str]) -> Any:
    """The configuration that these values of JSON are, or None and what is wrong with them in `problems`."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    types = {field.name: hints(kind)[field.name] for field in fields(kind)}
    for name, value in values.items():
        try:
            if name not in types:
                raise ConfigError(f"config.{name}: unknown key; {nearest(name, types)}")
            validate(f"config.{name}", name, value, types[name])
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        return None
    try:
        return kind(**values)
    except ConfigError as error:
        problems.append(str(error))
        return None


def _names() -> list[str]:
    return [kind.__name__ for kind in _CONFIGS]
