"""Datastores beside a run: opened with the model that made them, a run of one's own or published weights."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import ConfigError
from regard.integrations import pretrained
from regard.models import LanguageModel
from regard.text.reader import Reader
from regard_lab.retrieval import Datastore, Index, LookedUp, Lookup, Own, origin
from regard_lab.retrieval.manifest import IndexKind
from regard_lab.tasks.base import Task
from regard_lab.tasks.config import TextConfig
from regard_lab.training import RunConfig, load
from regard_lab.training.beside import alone, require

_LOG = logging.getLogger("regard")


class Decoder(NamedTuple):
    """A decoder, what it reads with, and how many tokens it reads at a time unless something else is said."""

    model: LanguageModel
    reader: Reader
    length: int


def decoder(path: str, *, device: str = "cpu", trust: bool = False, ignore: Sequence[str] = ()) -> Decoder:
    """A decoder of text that a datastore can be made with.

    Args:
        path: directory of a run; or published weights, as `pretrained.load` takes them.
        device: auto, cpu, cuda or mps.
        trust: as `regard.load`.
        ignore: as `pretrained.load`.

    Raises:
        ConfigError: a run on something else than text. Others: as `pretrained.load` and `regard.load`.
    """
    if pretrained.recognised(path):
        published = pretrained.load(path, device=device, trust=trust, ignore=ignore)
        return Decoder(published.decoder, published.reader, min(1024, published.config.max_length))
    loaded = load(path, device=device, trust=trust)
    task = loaded.config.task
    if not isinstance(loaded.model, LanguageModel) or loaded.tokenizer is None or not isinstance(task, TextConfig):
        raise ConfigError(f"{path} was trained on {task.name}, and a datastore is of text")
    return Decoder(loaded.model, loaded.tokenizer, task.length)


def lookup(
    folder: str,
    maker: str,
    *,
    k: int,
    index: IndexKind | None = None,
    probes: int | None = None,
    device: str = "cpu",
    trust: bool = False,
    ignore: Sequence[str] = (),
) -> Lookup:
    """A datastore, verified, with the model that made it.

    Args:
        folder: of `regard knn build`.
        maker: the model, as `decoder` takes it.
        k: neighbours of every position.
        index, probes: as `Index.load`; None: exact search.
        device, trust, ignore: as `decoder`.

    Raises:
        ConfigError: no datastore, no model or no such index. CheckpointError: damaged, empty, or of another model or
            tokenizer. LimitError: k above its entries. UnsupportedError: FAISS is not installed.
    """
    store = Datastore.open(folder)
    if not pretrained.recognised(maker) and not Path(maker).exists():
        raise ConfigError(
            f"there is no {maker}, the model that a datastore is read with; give one, or put it back where it was, or "
            "a link to it"
        )
    made = decoder(maker, device=device, trust=trust, ignore=ignore)
    store.require_origin(origin(made.model, made.reader), made.model.config.dim)
    found_in = store if index is None else Index.load(store, index, probes=probes)
    return Lookup(made.model.eval().requires_grad_(False), found_in, k=k)


def beside(config: RunConfig, task: Task, *, trust: bool = False, ignore: Sequence[str] = ()) -> Task:
    """The data of a run with the neighbours that its model mixes in, for `regard.train(..., beside=beside)`.

    Args:
        config: of the run. Without a datastore, the data are as they are.
        task: its data.
        trust, ignore: as `decoder`, of the model that made the datastore.

    Raises:
        ConfigError: neighbours without a datastore, or the other way round. CheckpointError: the datastore has another
            tokenizer. Others: as `lookup`.

    Example:
        >>> from regard.models import presets
        >>> from regard_lab.training import TrainingConfig, train
        >>> training = TrainingConfig(datastore="store", datastore_model="runs/base")
        >>> config = RunConfig(model=presets.build("spalm", layers=2), training=training)
        >>> train(config, "runs/spalm", beside=beside)  # doctest: +SKIP
    """
    training = config.training
    if training.datastore is None or training.datastore_model is None:
        return alone(config, task)
    require(config)
    if not Path(training.datastore).exists():
        raise ConfigError(
            f"there is no {training.datastore}, the datastore of this run; put it back where it was, or a link to it"
        )
    found = lookup(
        training.datastore,
        training.datastore_model,
        k=config.model.neighbours,  # type: ignore[union-attr]  # `require`: a decoder
        device=training.device,
        trust=trust,
        ignore=ignore,
    )
    looked = LookedUp(task, found, leaving_out=Own(found.store))
    _LOG.warning("%s, training: %s", training.datastore, looked.own("train"))
    if said := looked.cut_otherwise("train"):
        _LOG.warning("%s", said)
    return looked
