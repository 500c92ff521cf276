"""Options of a training run: defaults, then a preset, then a TOML file, then flags."""

import argparse
import ast
import inspect
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from regard.core.errors import ConfigError, nearest
from regard.files.reading import text
from regard.models import presets
from regard.models.encoder_config import EncoderConfig
from regard.specs import counted
from regard.specs import parse as parse_spec
from regard_lab.cli._options import TYPES, Ignore, Json
from regard_lab.tasks.config import (
    ClassificationConfig,
    ImagesConfig,
    SuperResolutionConfig,
    TaskConfig,
)
from regard_lab.training import toml
from regard_lab.training.config import SHAPES, AnyModelConfig, RunConfig, TrainingConfig
from regard_lab.training.parallel_config import ParallelConfig

CHANGEABLE = ("steps", "learning_rate")
"""of a run that is continued"""
CONVERTED = ("attention", "max_length", "projections", "memory")
_PER_LAYER = ("attention", "memory")
_MOST_LAYERS = 1000
"""of weights that a command line speaks of layer by layer"""
STARTED = (*CONVERTED, "dropout", "attention_dropout", "checkpoint")
"""of the model of a run that starts from weights; those in CONVERTED convert them"""
TASKS: dict[str, type] = {kind.name: kind for kind in get_args(TaskConfig)}


@dataclass(frozen=True)
class Options:
    """A training run: its task, its model, and how it is trained."""

    out: str | None = None
    """directory of the new run; None: runs/ and the first free number"""
    start: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """start from these weights instead of new ones: published ones (a .gguf file, a Hugging Face folder, package:NAME;
    for the task text), or those of a run on the same task. Shape and tokenizer are theirs; --model.attention,
    --model.max-length, --model.projections and --model.memory convert them, and dropout may be another"""
    resume: str | None = None
    """continue this run, with its own configuration; beside it --steps trains longer, also after the end, and
    --learning-rate goes on with another one, as after a loss that was not finite; --json, --trust, --edited,
    --parallel.*"""
    changed: tyro.conf.Suppress[tuple[str, ...]] = ()
    shaped: tyro.conf.Suppress[tuple[str, ...]] = ()
    config: str | None = None
    """TOML file with the sections model, task and training; flags win over it"""
    trust: bool = False
    """--config, --from and --resume may name classes by import path, module:Class, which runs the code of those
    modules"""
    ignore: Ignore = ()
    edited: bool = False
    """--resume although its config.toml is another than when the run began"""
    preset: str | None = None
    """start from a published shape, see `regard list`; with its own options as NAME(option=value, ...)"""
    kind: Annotated[Literal[*TASKS], tyro.conf.arg(name="task")] = "text"  # pyright: ignore[reportInvalidTypeForm]
    """the task, which decides the kind of model; its own options are --task.*"""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")] = field(default_factory=TrainingConfig)
    """how it is trained"""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """what several processes share besides the examples; also beside --resume, where it may be another each time"""
    json: Json = False
    model: Any = None
    task: Any = None


def parse(words: Sequence[str], description: str) -> Options:
    """Read the words after `regard train`.

    Raises:
        ConfigError: an unknown preset or task, options beside --resume, or a file with problems (all are listed).
        SystemExit: flags that tyro refuses (exit code 2) or --help.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--config", "--preset", "--task", "--resume"):
        early.add_argument(name)
    early.add_argument("--from", dest="start")
    early.add_argument("--task.data", dest="data")
    for name in CHANGEABLE:
        early.add_argument(f"--{name.replace('_', '-')}", f"--{name}", dest=name)
    early.add_argument("--parallel.sequence")
    for name in ("--trust", "--edited"):
        early.add_argument(name, action="store_true")
    try:
        first, rest = early.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    if first.resume is not None:
        beside = [f"--{name}" for name in ("config", "preset", "task") if getattr(first, name) is not None]
        beside += [] if first.start is None else ["--from"]
        beside += [] if first.data is None else ["--task.data"]
        beside += [word for word in rest if word not in ("--json", "-h", "--help")]
        if beside:
            raise ConfigError(
                f"--resume continues a run with its own configuration, so {' '.join(beside)} would change nothing: "
                "leave it out, or start a new run"
            )
    elif first.edited:
        raise ConfigError("--edited goes with --resume: a new run has no earlier configuration; leave it out")
    if any(word == "--only" and behind[:2] in ("", "--") for word, behind in zip(words, [*words[1:], ""], strict=True)):
        raise ConfigError("--only names what learns, and without a name everything would; give one, or leave it out")
    if first.task is not None and first.task not in TASKS:
        raise ConfigError(f"unknown task {first.task!r}: {nearest(first.task, TASKS)}")
    shaped = () if first.start is None else _shaped(first, rest)
    layers = None if first.start is None else _layers(first, rest)
    config = _layered(first, words, layers)
    task = config.task.name
    groups = [
        (name, Annotated[type(value), tyro.conf.arg(help=said)], field(default=value))
        for name, value, said in (("model", config.model, "the model"), ("task", config.task, "what it learns from"))
    ]
    kind: type[Options] = make_dataclass("Options", groups, bases=(Options,), frozen=True)
    read = tyro.cli(
        kind,
        default=kind(kind=task, training=config.training),
        args=list(words),
        prog="regard train",
        description=description,
        registry=TYPES,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands),
    )
    return replace(read, changed=tuple(name for name in CHANGEABLE if getattr(first, name) is not None), shaped=shaped)


def _shaped(first: argparse.Namespace, words: Sequence[str]) -> tuple[str, ...]:
    """What the flags and the file say of the model that starts from weights.

    Raises:
        ConfigError: what weights have of themselves.
    """
    if first.preset is not None:
        raise ConfigError(f"--preset {first.preset} is a shape for new weights, and --from has its own; leave one out")
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    said = [flag.removeprefix("--").replace("-", "_") for flag in flags]
    if first.config is not None:
        with suppress(OSError, ValueError):
            tables = tomllib.loads(text(Path(first.config)))
            said += [f"{section}.{name}" for section in ("model", "task") for name in tables.get(section, ())]
    theirs = [name for name in said if name.startswith("model.") and name.removeprefix("model.") not in STARTED]
    theirs += [name for name in said if name in ("task.tokenizer", "task.vocab_size")]
    if theirs:
        allowed = ", ".join(f"--model.{name.replace('_', '-')}" for name in STARTED)
        raise ConfigError(
            f"--from {first.start} has its own shape and tokenizer, so {', '.join(theirs)} cannot be another; leave it "
            f"out. What may be said of the model: {allowed}"
        )
    return tuple(dict.fromkeys(name.removeprefix("model.") for name in said if name.startswith("model.")))


def _layers(first: argparse.Namespace, words: Sequence[str]) -> int | None:
    """How many layers the specifications of the flags and the file are for; None: one for all, or none.

    Weights have their own number, which these are compared with once they are read; until then a model stands in.
    """
    said: dict[str, list[str]] = {}
    if first.config is not None:
        with suppress(OSError, ValueError):
            model = tomllib.loads(text(Path(first.config))).get("model", {})
            said |= {name: model[name] for name in _PER_LAYER if isinstance(model.get(name), list)}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = flag.removeprefix("--model.")
            said |= {name: [value] if equals else []}
        else:
            said.setdefault(name, []).append(word)
    counts = [len(said.get("attention", ())), 0]
    with suppress(ConfigError):  # what is wrong is said with all that is
        counts[1] = sum(counted(spec)[1] for spec in said.get("memory", ()))
    return max((count for count in counts if 1 < count <= _MOST_LAYERS), default=None)


def _layered(first: argparse.Namespace, words: Sequence[str], layers: int | None) -> RunConfig:
    """The run before the flags: defaults, the preset, the file; and the flags that decide the kind of model.

    Args:
        layers: of the model, where it stands in for that of weights; None: as said.
    """
    config, able = RunConfig(), list(SHAPES)
    if first.preset is not None:
        model = _preset(first.preset, words, first.config)
        able = _able(model)
        if not able:
            raise ConfigError(
                f"preset {first.preset} is a model for Python: no task of regard train has data for it; choose another "
                "one, see regard list"
            )
        config = RunConfig(model=model, task=TASKS[able[0]]())
    if first.config is not None:
        named: dict[str, object] = {} if first.task is None else {"task.name": first.task}
        named |= {} if layers is None else {"model.layers": layers}
        layered = toml.layer(config, Path(first.config), named, trust=first.trust)
        if first.data is not None and layered.task.name == ClassificationConfig.name:
            layered = toml.layer(config, Path(first.config), {**named, "task.data": first.data}, trust=first.trust)
    else:  # without TOML's checks, which take a while to import
        task = TASKS[first.task or config.task.name]()
        if first.data is not None and isinstance(task, ClassificationConfig):
            task = replace(task, data=first.data)
        if first.preset is None:
            config = RunConfig(task=task)
            return config if layers is None else replace(config, model=replace(config.model, layers=layers))
        layered = replace(config, task=task) if task.name in able else RunConfig(task=task)
    if layered.task.name not in able:
        raise ConfigError(
            f"preset {first.preset} is a model for the tasks {', '.join(able)}, not for {layered.task.name}; choose "
            "one with --task, or another preset"
        )
    return layered


def _able(model: AnyModelConfig) -> list[str]:
    """The tasks that a model can do."""
    if isinstance(model, EncoderConfig) and model.input_dim:
        return [ClassificationConfig.name]  # the others read tokens
    pixels = {ImagesConfig.name, SuperResolutionConfig.name}
    able = [name for name, kind in SHAPES.items() if kind is type(model)]
    # A model whose outputs are not its inputs is one of pixels.
    own_targets = getattr(model, "targets", None) is not None
    return [name for name in able if not own_targets or name in pixels]


def _preset(name: str, words: Sequence[str], file: str | None) -> AnyModelConfig:
    """A preset, with what the file and the flags say of its arguments: what it derives from them (the width of an MLP)
    follows. What they say wrongly is left to those who read all of it.
    """
    spec = parse_spec(name)
    arguments = inspect.signature(presets.function(spec.name)).parameters
    values: dict[str, object] = {}
    if file is not None:
        with suppress(OSError, ValueError):
            values |= tomllib.loads(text(Path(file))).get("model", {})
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for argument in arguments:
        flags.add_argument(f"--model.{argument.replace('_', '-')}", f"--model.{argument}", dest=argument)
    with suppress(argparse.ArgumentError):
        for argument, value in vars(flags.parse_known_args(list(words))[0]).items():
            with suppress(ValueError, SyntaxError):
                values |= {} if value is None else {argument: ast.literal_eval(value)}
    numbers = {key: value for key, value in values.items() if key in arguments and isinstance(value, int | float)}
    return presets.build(spec.name, **{**spec.options, **numbers})


def run_config(options: Options) -> RunConfig:
    """The configuration that the options describe."""
    return RunConfig(options.model, options.task, options.training)
