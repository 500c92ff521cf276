"""Weights that a training starts from, instead of new ones.

A run that starts from weights has them in its first checkpoint, that of step 0, so it needs what they came from no
more. start.json says where that was.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from regard.core.device import chosen_device
from regard.core.errors import CheckpointError, ConfigError, listed
from regard.files.checksums import Entry, entries, manifest
from regard.files.folders import write_json
from regard.models import LanguageModel
from regard.text.reader import Reader
from regard.text.tokenizer import PUBLISHED
from regard_lab.tasks import TaskConfig, TextConfig, has_text
from regard_lab.tasks.base import Task
from regard_lab.training import checkpoint, network
from regard_lab.training.checkpoint import Progress, own_tensors
from regard_lab.training.config import AnyModelConfig, RunConfig, TrainingConfig, default_model
from regard_lab.training.environment import own_settings
from regard_lab.training.network import Network
from regard_lab.training.only import learning
from regard_lab.training.optimizer import adamw

START = "start.json"
FREE = ("dropout", "attention_dropout", "checkpoint")
"""fields of a model's configuration that no weight depends on"""
_WHY_NOT = {
    "masked": "hides tokens behind one more of its own, which published weights have no row for",
    "classification": "puts a token of its own in front of every text, and its head reads that",
    "translation": "ends sentences with a token of its own",
}


@dataclass(frozen=True)
class Origin:
    """Where weights came from.

    source: as it was named. files: what was read, by their names, with checksums. stop_tokens: ids that end a text.
    """

    source: str
    files: Mapping[str, Entry]
    stop_tokens: tuple[int, ...] = ()

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, {"source": self.source, **manifest(self.files), "stop_tokens": list(self.stop_tokens)})

    @classmethod
    def load(cls, path: Path) -> "Origin":
        """Read what `save` wrote.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        values = network.read_json(path)
        try:
            return cls(str(values["source"]), entries(values), tuple(int(token) for token in values["stop_tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error!r}; restore it, or start a new run") from error


@dataclass(frozen=True)
class Start:
    """Weights, and what belongs to them.

    Args:
        model: the network, which stays as it is.
        tokenizer: what it reads text with; None: none.
        origin: where it came from.
        task: of the run that trained it; None: published weights.
    """

    model: torch.nn.Module
    tokenizer: Reader | None
    origin: Origin
    task: TaskConfig | None = None

    @property
    def shape(self) -> AnyModelConfig:
        """The configuration of the network."""
        config = getattr(self.model, "config", None)
        return self.model.encoder.config if config is None else config  # type: ignore[union-attr]  # a head has none

    def configured(self, config: RunConfig) -> RunConfig:
        """The configuration of a run that starts here: shape and tokenizer are those of the weights.

        Args:
            config: what is asked for. Its model is the default, or that of the weights with other dropout or another
                `checkpoint`; of its tokenizer nothing is said.

        Raises:
            ConfigError: a task that these weights do not do, another shape, another tokenizer.
        """
        self.require_task(config.task)
        shape = self.shape
        given = shape if config.model == default_model(config.task) else config.model
        there, asked = asdict(shape), asdict(given)
        others = [
            f"model.{name}: {value!r} in the weights, {asked.get(name)!r} asked for"
            for name, value in there.items()
            if name not in FREE and value != asked.get(name)
        ]
        if others:
            raise ConfigError(
                f"{self.origin.source} has another shape than the model asked for; leave the model out, or change only "
                f"{', '.join(FREE)}:{listed(others)}"
            )
        return RunConfig(given, self._reading(config.task), config.training)

    def require(self, task: Task) -> None:
        """Refuse data that the network cannot read.

        Raises:
            ConfigError: windows longer than its positions, or other tokens.
        """
        self._require_positions(task)
        assert isinstance(self.model, Network)
        tokens, targets = network.sizes(self.model)
        if (task.vocab_size, task.num_targets) != (tokens, targets):
            raise ConfigError(
                f"{self.origin.source} has {tokens} tokens and {targets} targets, and the task {task.vocab_size} and "
                f"{task.num_targets}; they must be the same"
            )

    def _require_positions(self, task: Task | TaskConfig) -> None:
        limit, length = self.model.limit if isinstance(self.model, LanguageModel) else None, getattr(task, "length", 0)
        if limit is not None and length > limit:
            raise ConfigError(
                f"task.length={length}, and {self.origin.source} has {limit} positions; set task.length to {limit} or "
                f"less, or give it more, which repeat the rows of its table: --model.max-length {length} (in Python: "
                f"max_length={length})"
            )

    def begin(self, run: Path, model: Network, task: Task, config: TrainingConfig, identity: str) -> None:
        """Write the first checkpoint of a run, that of step 0.

        Args:
            run: its folder.
            model: a new network of its configuration, which gets the weights.
            task: its data.
            config: its training.
            identity: its id.

        Raises:
            ConfigError: the network has other weights than this one.
        """
        tensors, wanted = own_tensors(self.model), own_tensors(model)
        there, here = ({name: tuple(x.shape) for name, x in each.items()} for each in (tensors, wanted))
        others = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        if others:
            said = [f"{name}: {there.get(name, 'none')} there, {here.get(name, 'none')} here" for name in others]
            raise ConfigError(f"{self.origin.source} does not fit this task:{listed(said[:5])}")
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(tensors[name])
        progress, device = Progress(data=task.fingerprint, run=identity), chosen_device(config.device)
        learning(model, config.only)
        with own_settings(device, config):
            torch.manual_seed(config.seed)
            checkpoint.save(run / "checkpoints", progress, model, adamw(model), device)

    def require_task(self, task: TaskConfig) -> None:
        """Refuse a task that these weights do not do.

        Raises:
            ConfigError: with the reason.
        """
        source = self.origin.source
        if self.task is not None:
            if type(task) is not type(self.task):
                raise ConfigError(
                    f"{source} was trained on {self.task.name}, and its weights start a training on {self.task.name} "
                    f"alone, got {task.name}: --task {self.task.name}"
                )
            return
        if type(task) is not TextConfig:
            why = _WHY_NOT.get(task.name, "reads no text")
            raise ConfigError(
                f"{source} cannot start a training on {task.name}, which {why}; published weights start the task text "
                "alone. Others are trained as torch modules, see docs/fine_tune.md"
            )
        if not isinstance(self.model, LanguageModel):
            raise ConfigError(
                f"{source} is a {type(self.model).__name__}, and the task text trains decoders; train it as a torch "
                "module, see docs/fine_tune.md"
            )
        if self.tokenizer is None:
            raise ConfigError(f"{source} has no tokenizer.json, so it cannot read text; put it there")
        self._require_positions(task)

    def _reading(self, task: TaskConfig) -> TaskConfig:
        """The task with the tokenizer of the weights."""
        if not has_text(task):
            return task
        wanted: Any = task
        if self.task is None:
            kind, size = PUBLISHED, None
        else:
            kind, size = self.task.tokenizer, self.task.vocab_size  # type: ignore[union-attr]
        unsaid = {field.name: field.default for field in fields(task)}
        for name, value in (("tokenizer", kind), ("vocab_size", size)):
            if getattr(wanted, name) not in (unsaid[name], value):
                raise ConfigError(
                    f"task.{name}={getattr(wanted, name)!r}: the weights of {self.origin.source} have their own "
                    "tokenizer; leave it out"
                )
        return replace(wanted, tokenizer=kind, vocab_size=size)


def require_same(run: Path, start: Start | None) -> None:
    """Refuse to go on with a run that started from other weights than those that are given.

    Raises:
        ConfigError: it did, or one of them is without.
    """
    there = Origin.load(run / START) if (run / START).exists() else None
    given = None if start is None else start.origin
    if there != given:
        names = [f"{each.source} ({_hashes(each)})" if each is not None else "new weights" for each in (there, given)]
        raise ConfigError(f"{run} started from {names[0]}, not from {names[1]}; choose another name")


def _hashes(origin: Origin) -> str:
    return ", ".join(f"{name} {entry.sha256[:12]}" for name, entry in origin.files.items())
