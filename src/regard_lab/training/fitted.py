"""The configuration of a run as it is written: with what the task decides, and paths that hold from any folder."""

from dataclasses import replace
from pathlib import Path

from regard.core.errors import ConfigError
from regard_lab.tasks import ClassificationConfig, ImagesConfig, TextConfig, TranslationConfig
from regard_lab.tasks.base import Task
from regard_lab.tasks.config import TEXT_CLASSES, TOYS
from regard_lab.tasks.corpus import NAMED
from regard_lab.tasks.translation import BUNDLED as BUNDLED_PAIRS
from regard_lab.training import network
from regard_lab.training.config import RunConfig


def fitted(config: RunConfig, task: Task) -> RunConfig:
    """The configuration with what the task decides of the model, and paths that hold from any folder."""
    wanted = config.task
    if isinstance(wanted, TextConfig):
        cache = None if wanted.cache is None else _absolute(wanted.cache)
        corpus = wanted.corpus if wanted.corpus in NAMED else _absolute(wanted.corpus)
        wanted = replace(wanted, corpus=corpus, cache=cache)
    elif isinstance(wanted, TranslationConfig) and wanted.corpus != BUNDLED_PAIRS:
        wanted = replace(wanted, corpus=_absolute(wanted.corpus))
    elif isinstance(wanted, ImagesConfig | ClassificationConfig) and wanted.data not in (*TEXT_CLASSES, TOYS):
        wanted = replace(wanted, data=_absolute(wanted.data))
        if isinstance(wanted, ClassificationConfig) and wanted.test is not None:
            wanted = replace(wanted, test=_absolute(wanted.test))
    store, maker = config.training.datastore, config.training.datastore_model
    if store is not None and maker is not None:
        store, maker = _absolute(store), maker if maker.startswith("package:") else _absolute(maker)
    training = replace(config.training, datastore=store, datastore_model=maker)
    return replace(config, model=network.fitted(config.model, task), task=wanted, training=training)


def _absolute(path: str) -> str:
    absolute = str(Path(path).expanduser().resolve())
    try:
        absolute.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{absolute!r} is not UTF-8, and the run's config.toml is; rename it") from None
    return absolute
