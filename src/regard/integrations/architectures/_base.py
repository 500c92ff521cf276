"""A published architecture as data, and the functions that their files share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from regard import specs
from regard.core.errors import UnsupportedError
from regard.integrations.weights import Settings, Stored, Weight, listed
from regard.models.block_config import MlpKind
from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.heads import Classifier

Config = ModelConfig | EncoderConfig | EncoderDecoderConfig

ACTIVATIONS: dict[str, MlpKind] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
"""Their name of an activation -> ours; the first name of several is the one that is written."""


@dataclass(frozen=True)
class Form:
    """One network of an architecture: bare, or with a head.

    titles: its names under `architectures` of a configuration; the first is written. model: our class. weights: which
    tensor is which of our weights, for our configuration. build: the model from our configuration and theirs; None: its
    class does, from ours. bare: written without the architecture's prefix. ignored: endings of names of tensors that
    follow from the configuration or belong to a head that is not here. derived: endings of ours that follow from the
    configuration, so that no file has them. copies: tensors that some files repeat, and of which. made: the tensors of
    a file with those that follow from others, for our configuration and theirs. settings: theirs for a network where
    our configuration has none; raises if it is none of this architecture.
    """

    titles: tuple[str, ...]
    model: type[nn.Module]
    weights: Callable[[Any], list[Weight]]
    build: Callable[[Any, Settings], nn.Module] | None = None
    bare: bool = False
    ignored: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    made: Callable[[Mapping[str, Stored], Any, Settings], dict[str, Stored]] = lambda stored, config, settings: dict(
        stored
    )
    settings: Callable[[Any], dict[str, object]] = lambda model: {}


@dataclass(frozen=True)
class Gguf:
    """How GGUF keeps an architecture. keys: setting -> metadata key. weights: ours there. check: notes other keys."""

    keys: Mapping[str, str]
    weights: Callable[[Any], list[Weight]]
    check: Callable[[Settings], None]


class Widths(NamedTuple):
    """Query heads, heads of keys and values, width of a head."""

    count: int
    kv_count: int
    key_dim: int


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of transformers, whose softmax another mechanism can stand for.

    widths: the heads of a module. cross: whether it reads another sequence. biased: where it does not, its
    logits have a bias, which is how the network knows positions.
    """

    widths: Callable[[Any], Widths]
    cross: Callable[[Any], bool] = lambda module: False
    biased: bool = False


@dataclass(frozen=True)
class Architecture:
    """How a published architecture maps to our models and back.

    name: `model_type` of its configuration. config: our configuration from theirs; raises if there are problems.
    settings: theirs from ours; raises if ours is none of this architecture. forms: its networks, the first for a
    configuration that names none. prefix: of its tensors' names, which a file of a bare network leaves out. renamed:
    what some files call tensors -> what they are called here; regular expressions, one after the other. refused: its
    networks that no model of ours is -> why. gguf: None if GGUF files of it are not read. modules: its attention
    modules in transformers by the name of their class; none if other mechanisms cannot stand there.
    """

    name: str
    config: Callable[[Settings], Any]
    settings: Callable[[Any], dict[str, object]]
    forms: tuple[Form, ...]
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    gguf: Gguf | None = None
    modules: Mapping[str, AttentionModule] = field(default_factory=dict)

    def form(self, settings: Settings) -> Form:
        """The network that a configuration names.

        Raises:
            UnsupportedError: one with a head that no model of ours has.
        """
        named = settings.get("architectures")
        if not isinstance(named, list) or not named:
            return self.forms[0]
        for form in self.forms:
            if named[0] in form.titles:
                return form
        titles = ", ".join(title for form in self.forms for title in form.titles)
        why = self.refused.get(str(named[0]))
        raise UnsupportedError(
            f"{settings.where} holds the network {named[0]!r}{f', {why}' if why else ''}; of {self.name} regard loads "
            f"{titles}"
        )


_SAME = {
    "block": "residual",
    "depth": "fixed",
    "memory": "none",
    "short_convolution": 0,
    "output_bias": False,
    "neighbours": 0,
}
"""fields, of the configurations that have them, and the value that every published architecture has"""


def require(config: Config, name: str, *, attention: str | None = "softmax", position: str, **wanted: object) -> None:
    """Refuse to write a model as an architecture that it is not; none has what `_SAME` excludes.

    Args:
        config: of the model.
        name: of the architecture.
        attention: the specification of every layer; None: not looked at here.
        position: name of the scheme.
        wanted: values of further fields; a tuple: any of them.

    Raises:
        UnsupportedError: with every setting that differs.
    """
    stacks = {"attention": config.attention}
    if isinstance(config, EncoderDecoderConfig):
        stacks |= {"encoder_attention": config.encoder_attention, "cross_attention": config.cross_attention}
    same = {**_SAME, "targets": (None, config.vocab_size), "encoder_position": (None, config.position)}
    same["value_dim"] = (None, config.key_dim)
    differing = []
    for label, value in {**{label: x for label, x in same.items() if hasattr(config, label)}, **wanted}.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if getattr(config, label) not in allowed:
            said = " or ".join(map(repr, allowed))
            differing.append(f"{label}={getattr(config, label)!r}, not {said}")
    for label, layers in stacks.items():
        used = sorted({str(specs.parse(spec)) for spec in layers})
        if attention is not None and used != [attention]:
            differing.append(f"{label}={', '.join(used)}, not {attention}")
    if specs.parse(config.position).name != position:
        differing.append(f"position={config.position!r}, not {position}")
    if differing:
        raise UnsupportedError(f"this model cannot be written as {name}:{listed(differing)}")


def activation(settings: Settings, name: str, default: str) -> MlpKind:
    """The activation of the MLP that a configuration names."""
    return ACTIVATIONS.get(str(settings.choice(name, list(ACTIVATIONS), default)), "gelu")


def token(settings: Settings, name: str, default: float) -> int:
    """The number of a token."""
    return int(settings.number(name, default))


class Key(NamedTuple):
    """A setting of theirs that is a field of ours.

    default: what stands for one left out, or how it follows from the fields above; None: it must be there. read: as the
    methods of `Settings`.
    """

    theirs: str
    default: Any = None
    read: Callable[[Settings, str, Any], object] = Settings.axis


@dataclass(frozen=True)
class Table:
    """A configuration as data, in both directions. Heads share the width unless it has a setting for that of a head.

    name: of the architecture. kind: of our configuration. position: name of the scheme. keys: our field -> their
    setting. fixed: fields that have one value. only: settings of theirs -> the value that our model has, which also
    stands for one left out.
    """

    name: str
    kind: type[Any]
    position: str
    keys: Mapping[str, Key]
    fixed: Mapping[str, object]
    only: Mapping[str, object] = field(default_factory=dict)

    def read(self, settings: Settings) -> dict[str, Any]:
        """Our fields; what is wrong is noted in the settings."""
        for name, value in self.only.items():
            settings.choice(name, [value], value)
        found: dict[str, Any] = {}
        for ours, key in self.keys.items():
            default = key.default(found) if callable(key.default) else key.default
            found[ours] = key.read(settings, key.theirs, default)
        if "head_dim" not in self.keys:
            dim, heads = self.keys["dim"].theirs, self.keys["heads"].theirs
            settings.divides(heads, found["heads"], dim, found["dim"])
        return {"position": self.position, **self.fixed, **found}

    def config(self, settings: Settings, found: Mapping[str, Any]) -> Any:
        """Our configuration of these fields.

        Raises:
            CheckpointError: every problem of the configuration.
        """
        settings.check()
        return self.kind(**found)

    def settings(self, config: Any, *, attention: str | None = "softmax", **wanted: object) -> dict[str, object]:
        """Theirs from ours.

        Args:
            config: ours.
            attention, wanted: as `require`, beside what is fixed.

        Raises:
            UnsupportedError: a model that is none of this architecture.
        """
        common: dict[str, object] = {"embedding_scale": (None, 1.0)}
        if "head_dim" not in self.keys:
            common["key_dim"] = config.dim // config.heads
        if "kv_heads" not in self.keys:
            common["kv_heads"] = (None, config.heads)
        if "mlp" in self.keys:
            common["mlp"] = tuple(dict.fromkeys(ACTIVATIONS.values()))
        allowed = {**common, **self.fixed, **wanted}
        require(config, self.name, attention=attention, position=self.position, **allowed)
        return {key.theirs: _value(config, ours) for ours, key in self.keys.items()}


def _value(config: Any, name: str) -> object:
    """A field as theirs has it, who say what ours leaves to a rule."""
    match name:
        case "mlp":
            return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.mlp)
        case "mlp_dim":
            return config.mlp_width
        case "head_dim":
            return config.key_dim
        case "kv_heads":
            return config.kv_heads or config.heads
        case "encoder_layers":
            return config.encoder.layers
    return getattr(config, name)


def class_count(settings: Settings) -> int:
    """How many classes a configuration names.

    Raises:
        CheckpointError: a number that is none.
    """
    labels = settings.get("id2label")
    count = len(labels) if isinstance(labels, dict) else settings.axis("num_labels", 2)
    settings.check()
    return count


def class_settings(model: Classifier, name: str) -> dict[str, object]:
    """Their settings of a head for classes, whose names are numbers.

    Args:
        model: ours.
        name: of the architecture, for messages.

    Raises:
        UnsupportedError: a head that reads another vector than the first.
    """
    pooling, count = model.encoder.config.pooling, model.output.out_features
    if pooling != "first":
        raise UnsupportedError(f"this model cannot be written as {name}: pooling={pooling!r}, not 'first'")
    return class_names([f"LABEL_{at}" for at in range(count)])


def class_names(names: Sequence[str]) -> dict[str, object]:
    """Their settings of classes of these names."""
    return {
        "id2label": {str(at): name for at, name in enumerate(names)},
        "label2id": {name: at for at, name in enumerate(names)},
    }


def pairs(modules: Iterable[tuple[str, str]], *, bias: bool) -> list[Weight]:
    """The weight, and the bias where there is one, of each (our module, their module)."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Weight(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in modules for kind in kinds]
