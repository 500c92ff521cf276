"""The directory of a run that begins."""

from pathlib import Path

from regard.core.device import chosen_device
from regard.core.errors import ConfigError
from regard.files.folders import writing
from regard.models.config import ModelConfig
from regard_lab.tasks import ImagesTask, build_task
from regard_lab.tasks.base import Task
from regard_lab.training import begun, network, toml
from regard_lab.training.beside import Beside
from regard_lab.training.carried import Carrying
from regard_lab.training.config import AnyModelConfig, RunConfig
from regard_lab.training.fitted import fitted
from regard_lab.training.identity import new_id
from regard_lab.training.only import apart
from regard_lab.training.ranks import Ranks
from regard_lab.training.start import START, Start

LABELS = "labels.json"
IMAGES = "images.json"


def made(config: RunConfig, out: Path, start: Start | None, beside: Beside, ranks: Ranks) -> Task:
    """Make the directory of a new run, whole or not at all, once what will train it can do so.

    Returns:
        The data.

    Raises:
        ConfigError, DataError, ResourceError, UnsupportedError: as `regard_lab.training.train`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not a run; choose another name: nothing is ever overwritten")
    chosen_device(config.training.device)
    ranks.require(config.training)
    with begun.fresh(out) as partial:
        task = build_task(config.task, seed=config.training.seed, tokenizer=None if start is None else start.tokenizer)
        if start is not None:
            start.require(task)
        task = beside(config, task)
        config, run_id = fitted(config, task), new_id()
        model = network.build(config.model, len(task.classes))
        if config.training.carry:
            Carrying(model, task.examples("train"), config.training)
        else:
            _require_segments(config.model, task.length)
        apart(model, config.training.only, ranks)
        with writing(out):
            toml.save(config, partial / "config.toml")
            if task.tokenizer is not None:
                task.tokenizer.save(partial / "tokenizer.json")
            labels = network.labels(task)
            if labels is not None:
                labels.save(partial / LABELS)
            if isinstance(task, ImagesTask):
                network.save_grid(task.grid, partial / IMAGES)
            if start is not None:
                start.origin.save(partial / START)
        if start is not None:
            start.begin(partial, network.build(config.model, len(task.classes)), task, config.training, run_id)
        begun.record(partial, run_id)
    return task


def _require_segments(config: AnyModelConfig, longest: int) -> None:
    """Refuse a memory that is never read, and so never trained, because every example is one segment."""
    if not isinstance(config, ModelConfig) or not config.remembers or longest > config.max_length:
        return
    raise ConfigError(
        f"model.memory={config.memory!r} would remember nothing: a segment has model.max_length={config.max_length} "
        f"tokens, and no example to train on has more than {longest}; set model.max_length below that "
        f"({-(-longest // 2)} makes two segments), or leave the memory out"
    )
