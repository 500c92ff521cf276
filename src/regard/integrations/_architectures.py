"""Published architectures that our models can be, by the name in their configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from regard import specs
from regard.errors import UnsupportedError
from regard.integrations._weights import Settings, Weight, listed
from regard.models import LanguageModel
from regard.models.config import ModelConfig


@dataclass(frozen=True)
class Architecture:
    """How a published architecture maps to one of our models and back.

    name: `model_type` of its configuration. title: `architectures` of its configuration. config: our configuration from
    theirs; raises if there are problems. settings: theirs from ours. weights: which tensor is which of our weights, for
    a configuration. prefix: of their names, which a file of the base model leaves out. ignored: endings of names of
    tensors that follow from the configuration. copies: tensors that some files repeat, and of which.
    """

    name: str
    title: str
    config: Callable[[Settings], ModelConfig]
    settings: Callable[[ModelConfig], dict[str, object]]
    weights: Callable[[ModelConfig], list[Weight]]
    build: Callable[[ModelConfig], nn.Module] = LanguageModel
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)


def known() -> dict[str, Architecture]:
    """Every architecture by name."""
    from regard.integrations._gpt2 import GPT2
    from regard.integrations._llama import LLAMA

    return {one.name: one for one in (LLAMA, GPT2)}


def by_name(name: object, where: str) -> Architecture:
    """The architecture of a configuration.

    Raises:
        UnsupportedError: one that no model of ours is.
    """
    found = known()
    if not isinstance(name, str) or name not in found:
        raise UnsupportedError(f"{where} holds the architecture {name!r}; regard loads {', '.join(sorted(found))}")
    return found[name]


def require(config: ModelConfig, name: str, **wanted: object) -> None:
    """Refuse to write a model as an architecture that it is not.

    Raises:
        UnsupportedError: with every setting that differs.
    """
    attention = sorted({str(specs.parse(spec)) for spec in config.specs})
    found = {field: getattr(config, field) for field in wanted}
    differing = [f"{field}={found[field]!r}, not {value!r}" for field, value in wanted.items() if found[field] != value]
    if attention != ["softmax"]:
        differing.append(f"attention={', '.join(attention)}, not softmax")
    if differing:
        raise UnsupportedError(f"this model cannot be written as {name}:{listed(differing)}")
