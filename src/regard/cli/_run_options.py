"""Options of a training run: defaults, then a preset, then a TOML file, then flags."""

import argparse
import ast
import inspect
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from regard.errors import ConfigError, nearest
from regard.models import presets
from regard.models.config import ModelConfig
from regard.tasks.config import CopyConfig, RecallConfig, TaskConfig, TextConfig
from regard.training import toml
from regard.training.config import RunConfig, TrainingConfig

TASKS: dict[str, type] = {kind.name: kind for kind in get_args(TaskConfig)}


@dataclass(frozen=True)
class _Options:
    """What to train, on what, and how."""

    out: str | None = None
    """directory of the new run; None: runs/ and the first free number"""
    resume: str | None = None
    """continue this run, with its own configuration: takes no other option but --json"""
    config: str | None = None
    """TOML file with the sections model, task and training; flags win over it"""
    preset: str | None = None
    """start from a published shape, see `regard list`"""
    kind: Annotated[Literal["text", "recall", "copy"], tyro.conf.arg(name="task")] = "text"
    """the task; its own options are --task.*"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """the model"""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")] = field(default_factory=TrainingConfig)
    """how it is trained"""
    json: bool = False
    """machine output on stdout"""


@dataclass(frozen=True)
class TextOptions(_Options):
    """Train on text."""

    task: TextConfig = field(default_factory=TextConfig)
    """the text"""


@dataclass(frozen=True)
class RecallOptions(_Options):
    """Train on associative recall."""

    task: RecallConfig = field(default_factory=RecallConfig)
    """the sequences"""


@dataclass(frozen=True)
class CopyOptions(_Options):
    """Train on copying."""

    task: CopyConfig = field(default_factory=CopyConfig)
    """the sequences"""


KINDS = {"text": TextOptions, "recall": RecallOptions, "copy": CopyOptions}
Options = TextOptions | RecallOptions | CopyOptions


def parse(words: Sequence[str], description: str) -> Options:
    """Read the words after `regard train`.

    Raises:
        ConfigError: an unknown preset or task, options beside --resume, or a file with problems (all are listed).
        SystemExit: flags that tyro refuses (exit code 2) or --help.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--config", "--preset", "--task", "--resume"):
        early.add_argument(name)
    try:
        first, rest = early.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    if first.resume is not None:
        beside = [f"--{name}" for name in ("config", "preset", "task") if getattr(first, name) is not None]
        beside += [word for word in rest if word not in ("--json", "-h", "--help")]
        if beside:
            raise ConfigError(
                f"--resume continues a run with its own configuration, so {' '.join(beside)} would change nothing: "
                "leave it out, or start a new run"
            )
    config = RunConfig()
    if first.preset is not None:
        config = RunConfig(model=_preset(first.preset, words, first.config))
    if first.config is not None:
        config = toml.layer(config, Path(first.config))
    task = first.task or config.task.name
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}: {nearest(task, TASKS)}")
    data = config.task if config.task.name == task else TASKS[task]()
    default = KINDS[task](kind=task, model=config.model, training=config.training, task=data)
    return tyro.cli(
        KINDS[task],
        default=default,
        args=list(words),
        prog="regard train",
        description=description,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands),
    )


def _preset(name: str, words: Sequence[str], file: str | None) -> ModelConfig:
    """A preset, with what the file and the flags say of its arguments: what it derives from them (the width of an MLP)
    follows. What they say wrongly is left to those who read all of it.
    """
    arguments = inspect.signature(presets.function(name)).parameters
    given: dict[str, object] = {}
    if file is not None:
        with suppress(OSError, ValueError):
            given |= tomllib.loads(Path(file).read_text(encoding="utf-8")).get("model", {})
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for argument in arguments:
        flags.add_argument(f"--model.{argument.replace('_', '-')}", f"--model.{argument}", dest=argument)
    with suppress(argparse.ArgumentError):
        for argument, value in vars(flags.parse_known_args(list(words))[0]).items():
            with suppress(ValueError, SyntaxError):
                given |= {} if value is None else {argument: ast.literal_eval(value)}
    numbers = {key: value for key, value in given.items() if key in arguments and isinstance(value, int | float)}
    return presets.build(name, **numbers)


def run_config(options: Options) -> RunConfig:
    """The configuration that the options describe."""
    return RunConfig(options.model, options.task, options.training)
