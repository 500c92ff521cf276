"""A datastore beside a model, for the commands that take one."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.core.errors import ConfigError, LimitError
from regard_lab.cli._output import tell

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.text.reader import Reader
    from regard_lab.retrieval import Datastore, Index, KnnLm, Lookup, Own
    from regard_lab.training import TrainedModel


_LAM, _TEMPERATURE, _MOST = 0.25, 1.0, 1024
"""of kNN-LM, where nothing else is said; no more neighbours than there are entries"""
_PROBES = "--knn.probes is of an index; name it with --knn.index ivf, or leave it out"


@dataclass(frozen=True)
class KnnOptions:
    """How neighbours from --datastore are mixed in."""

    lam: float | None = None
    """weight of the neighbours, from 0 (the model alone, bit for bit) to 1; None: 0.25"""
    k: int | None = None
    """neighbours of every position; None: 1024, or as many as there are"""
    temperature: float | None = None
    """that squared distances are divided by; None: 1. regard knn sweep says what is good"""
    index: Literal["flat", "ivf", "hnsw"] | None = None
    """of FAISS, made by regard knn index; None: exact search"""
    probes: int | None = None
    """ivf: centres that are looked into, 32; hnsw: length of its list, 128"""
    own: bool = False
    """evaluating: a target may find the entry that was made of itself, which shows what looking it up can do; without
    it, the datastore's own documents are evaluated as if each target had not been stored"""


def searched(folder: str, options: KnnOptions, model: "LanguageModel", reader: "Reader | None") -> "Datastore | Index":
    """The datastore of a model, or an index of it, verified.

    Raises:
        ConfigError: no datastore, or no such index. CheckpointError: damaged, or of another model or tokenizer.
        UnsupportedError: FAISS is not installed; a model without keys.
    """
    from regard_lab.retrieval import Datastore, Index, origin
    from regard_lab.retrieval.keys import require_keys

    if options.probes is not None and options.index is None:
        raise ConfigError(_PROBES)
    require_keys(model)
    store = Datastore.open(folder)
    store.require_origin(origin(model, reader), model.config.dim)
    return store if options.index is None else Index.load(store, options.index, probes=options.probes)


def looked_up(folder: str, options: KnnOptions, model: "LanguageModel", reader: "Reader | None") -> "KnnLm":
    """The model with a datastore."""
    from regard_lab.retrieval import KnnLm

    found_in = searched(folder, options, model, reader)
    with as_options():
        return KnnLm(model, found_in, **_settings(options, len(found_in.store))).eval()


def _settings(options: KnnOptions, entries: int) -> dict[str, Any]:
    """k, lam and temperature of a mixture."""
    return {
        "k": min(_MOST, max(1, entries)) if options.k is None else options.k,
        "lam": _LAM if options.lam is None else options.lam,
        "temperature": _TEMPERATURE if options.temperature is None else options.temperature,
    }


def facts(folder: str, options: KnnOptions, neighbours: int = 0) -> dict[str, Any]:
    """What an evaluation says of the datastore that it read.

    Args:
        folder: of the datastore.
        options: how it was searched and mixed in.
        neighbours: that a model with a gate mixes in; 0: a model without.
    """
    from regard_lab.retrieval import Datastore

    entries = len(Datastore.open(folder, checked=False))
    mixed = _settings(options, entries) if not neighbours else {"k": neighbours}
    search = {"index": options.index} if options.index else {}
    return {"folder": folder, "entries": entries, **mixed, **search, "own_entries_left_out": not options.own}


def datastore_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `facts` found, for a table."""
    names = {"lam": "weight of neighbours", "k": "neighbours", "temperature": "temperature", "index": "index"}
    return [
        ("datastore", f"{found['folder']} ({found['entries']:,} entries)"),
        *((what, str(found[name])) for name, what in names.items() if name in found),
        ("own entries", "left out" if found["own_entries_left_out"] else "may be found"),
    ]


def mixing(given: Any, loaded: "TrainedModel") -> "Lookup":
    """What finds the neighbours of a run whose model mixes them in.

    Args:
        given: options of a command: `datastore` (None: the run's own), `knn`, `device`, `trust` and `ignore`.
        loaded: the run.

    Raises:
        ConfigError: options of kNN-LM, which mixes neighbours in without weights. Others: as `lookup`.
    """
    from regard_lab.networks.datastores import lookup

    folder, options = given.datastore, given.knn
    for name in ("lam", "temperature"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{loaded.path} mixes neighbours in by a gate that was trained: --knn.{name} is for a model without; "
                "leave it out"
            )
    if options.probes is not None and options.index is None:
        raise ConfigError(_PROBES)
    training = loaded.config.training
    assert training.datastore is not None
    assert training.datastore_model is not None
    if folder is None and not Path(training.datastore).exists():
        raise ConfigError(
            f"{loaded.path} was trained beside {training.datastore}, which is not there: put it back, or say where it "
            "is with --datastore"
        )
    with as_options():
        return lookup(
            training.datastore if folder is None else folder,
            training.datastore_model,
            k=loaded.model.config.neighbours if options.k is None else options.k,  # type: ignore[union-attr]
            index=options.index,
            probes=options.probes,
            device=given.device,
            trust=given.trust,
            ignore=given.ignore,
        )


@contextmanager
def as_options() -> Iterator[None]:
    """Numbers that are refused are called as the command calls them."""
    try:
        yield
    except (ConfigError, LimitError) as error:
        if re.match(r"(lam|k|temperature)\b", str(error)):
            raise type(error)(f"--knn.{error}") from None
        raise


@contextmanager
def tell_own(own: "Own | None") -> Iterator[None]:
    """Say on stderr how many targets had own entries left out inside; None: nothing is left out."""
    yield
    if own is not None and own.tally.targets:
        tell(str(own.tally))


def require_datastore(options: KnnOptions) -> None:
    """Refuse options of a datastore where there is none: ignored, they would look like they worked.

    Raises:
        ConfigError: there is one.
    """
    for field in fields(options):
        if getattr(options, field.name) != field.default:
            raise ConfigError(f"--knn.{field.name} goes with --datastore; give that too, or leave it out")
