"""A datastore beside a model, for the commands that take one."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.retrieval import Datastore, Index, KnnLm, Lookup
    from regard.tasks.reader import Reader
    from regard.training import TrainedModel


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
    """of FAISS, made by regard knn build --index; None: exact search"""
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
    from regard.retrieval import Datastore, Index, origin
    from regard.retrieval.keys import require_keys

    if options.probes is not None and options.index is None:
        raise ConfigError(_PROBES)
    require_keys(model)
    store = Datastore.open(folder)
    store.require_origin(origin(model, reader), model.config.dim)
    return store if options.index is None else Index.load(store, options.index, probes=options.probes)


def looked_up(folder: str, options: KnnOptions, model: "LanguageModel", reader: "Reader | None") -> "KnnLm":
    """The model with a datastore."""
    from regard.retrieval import KnnLm

    given: dict[str, Any] = {name: getattr(options, name) for name in ("lam", "temperature")}
    given = {name: value for name, value in given.items() if value is not None}
    return KnnLm(model, searched(folder, options, model, reader), k=options.k, **given).eval()


def mixing(folder: str | None, options: KnnOptions, loaded: "TrainedModel", *, device: str, trust: bool) -> "Lookup":
    """What finds the neighbours of a run whose model mixes them in.

    Args:
        folder: of the datastore; None: the run's own.
        options: how it is searched.
        loaded: the run.

    Raises:
        ConfigError: options of kNN-LM, which mixes neighbours in without weights. Others: as `lookup`.
    """
    from regard.integrations.datastores import lookup

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
    return lookup(
        training.datastore if folder is None else folder,
        training.datastore_model,
        k=loaded.model.config.neighbours if options.k is None else options.k,  # type: ignore[union-attr]  # a decoder
        index=options.index,
        probes=options.probes,
        device=device,
        trust=trust,
    )


def require_datastore(options: KnnOptions) -> None:
    """Refuse options of a datastore where there is none: ignored, they would look like they worked.

    Raises:
        ConfigError: there is one.
    """
    for field in fields(options):
        if getattr(options, field.name) != field.default:
            raise ConfigError(f"--knn.{field.name} goes with --datastore; give that too, or leave it out")
