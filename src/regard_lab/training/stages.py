"""Stages of a training: attention, length and rate change at given steps, and the weights go on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from regard import catalog
from regard.core.errors import ConfigError
from regard.models.config import ModelConfig
from regard.specs import Spec, parse
from regard_lab.tasks import build_task
from regard_lab.tasks.base import Task
from regard_lab.tasks.config import TaskConfig
from regard_lab.training import network
from regard_lab.training.carried import Carrying
from regard_lab.training.checkpoint import own_tensors
from regard_lab.training.config import AnyModelConfig, RunConfig, Stage
from regard_lab.training.only import apart
from regard_lab.training.ranks import Ranks

_WINDOWED = ("attention", "encoder_attention")
"""fields of a model's configuration whose mechanisms take a stage's window; a source is read whole"""


def number_at(stages: Sequence[Stage], step: int) -> int:
    """The stage, from 0, that takes a step, counted from 0; the last one takes whatever comes after it.

    Example:
        >>> [number_at((Stage(steps=2), Stage(steps=1)), step) for step in range(4)]
        [0, 0, 1, 1]
    """
    end = 0
    for number, stage in enumerate(stages):
        end += stage.steps
        if step < end:
            return number
    return max(len(stages) - 1, 0)


def trained_by(stages: Sequence[Stage], step: int) -> int:
    """The stage, from 0, that a model after `step` steps comes from: at the end of a stage, that stage."""
    return number_at(stages, max(step - 1, 0))


def model_of(config: AnyModelConfig, stage: Stage) -> AnyModelConfig:
    """The model's configuration in a stage: its attention, and in every specification that has a window, its window.

    Raises:
        ConfigError: a window, and no mechanism that has one; as many specifications as the model cannot have.

    Example:
        >>> from regard.models.config import ModelConfig
        >>> config = ModelConfig(attention=("local(window=8)", "softmax"))
        >>> model_of(config, Stage(steps=1, window=32)).attention
        ('local(window=32)', 'softmax')
    """
    if stage.attention is not None:
        config = replace(config, attention=stage.attention)
    if stage.window is None:
        return config
    specs = {field.name: getattr(config, field.name) for field in fields(config) if field.name in _WINDOWED}
    if not any(_has_window(spec) for layers in specs.values() for spec in layers):
        raise ConfigError(
            f"a stage has window={stage.window}, and none of the mechanisms "
            f"({', '.join(spec for layers in specs.values() for spec in layers)}) has one; leave it out, or choose one "
            "that has, such as local"
        )
    return replace(
        config, **{name: tuple(_with_window(spec, stage.window) for spec in layers) for name, layers in specs.items()}
    )


def _has_window(spec: str) -> bool:
    mixed = catalog.parts(spec)
    if mixed:
        return any(_has_window(inner) for inner, _ in mixed)
    return "window" in catalog.resolve(spec)[0].defaults


def _with_window(spec: str, window: int) -> str:
    def change(part: str) -> str:
        if not _has_window(part):
            return part
        parsed = parse(part)
        return str(Spec(parsed.name, {**parsed.options, "window": window}))

    return catalog.rewritten(spec, change)


def model_after(config: RunConfig, step: int) -> AnyModelConfig:
    """The shape of the model that has been trained for so many steps."""
    stages = config.training.stages
    return model_of(config.model, stages[trained_by(stages, step)]) if stages else config.model


@dataclass(frozen=True)
class Stages:
    """The stages of a run, counted from 0; a run without them is one stage.

    config: of the run. task: its own data, which it is evaluated on in every stage.
    """

    config: RunConfig
    task: Task

    def network(self, number: int) -> network.Network:
        """The network of a stage, with new weights."""
        stages = self.config.training.stages
        shape = model_of(self.config.model, stages[number]) if stages else self.config.model
        return network.build(shape, len(self.task.classes))

    def data(self, number: int) -> Task:
        """The data of a stage: the run's, cut to the stage's length.

        Raises:
            ConfigError: a length where the task has none, or one beyond that of the task.
        """
        config, stages = self.config, self.config.training.stages
        length = stages[number].length if stages else None
        if length is None or length == getattr(config.task, "length", None):
            return self.task
        return build_task(_cut(config.task, length), seed=config.training.seed, tokenizer=self.task.tokenizer)

    def require(self, ranks: Ranks) -> None:
        """Refuse networks that cannot be built, cannot follow one another or not be shared, before any work.

        Args:
            ranks: the processes that will train them.

        Raises:
            UnsupportedError: a network that the processes cannot share.
            ConfigError: a pattern of `training.only` that no parameter has; a stage whose weights have other names or
                shapes than the first one's; a memory, and no stage with examples of two segments; others as `model_of`,
                `data` and the networks.
        """
        first: dict[str, tuple[int, ...]] | None = None
        numbers = range(max(len(self.config.training.stages), 1))
        if self.config.training.carry:
            for number in numbers:
                Carrying(self.network(number), self.data(number).examples("train"), self.config.training)
        else:
            _require_segments(self.config.model, max(self.data(number).length for number in numbers))
        for number in numbers:
            model = self.network(number)
            apart(model, self.config.training.only, ranks)
            shapes = {name: tuple(x.shape) for name, x in own_tensors(model).items()}
            first = shapes if first is None else first
            other = sorted(name for name in shapes.keys() | first.keys() if shapes.get(name) != first.get(name))
            if other:
                named = [f"{name} is {shapes.get(name, 'absent')}, was {first.get(name, 'absent')}" for name in other]
                raise ConfigError(
                    f"training.stages: stage {number + 1} has other weights than stage 1: {'; '.join(named[:3])}"
                    f"{' ...' if len(named) > 3 else ''}. Weights are carried over, so names and shapes must agree"
                )


def _require_segments(config: AnyModelConfig, longest: int) -> None:
    """Refuse a memory that is never read, and so never trained, because every example is one segment."""
    if not isinstance(config, ModelConfig) or not config.remembers or longest > config.max_length:
        return
    raise ConfigError(
        f"model.memory={config.memory!r} would remember nothing: a segment has model.max_length={config.max_length} "
        f"tokens, and no example to train on has more than {longest}; set model.max_length below that "
        f"({-(-longest // 2)} makes two segments), or leave the memory out"
    )


def _cut(config: TaskConfig, length: int) -> TaskConfig:
    longest = getattr(config, "length", None)
    if longest is None:
        raise ConfigError(f"a stage has length={length}, and task {config.name} has no length; leave it out")
    if length > longest:
        raise ConfigError(
            f"a stage has length={length}, more than task.length={longest}, which is the longest: what is evaluated, "
            "and what the model has room for; raise task.length"
        )
    return replace(config, length=length)
