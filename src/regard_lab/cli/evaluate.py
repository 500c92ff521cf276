"""Evaluate a trained run or published weights: nats, bits per byte, accuracy, and the metrics of the task."""

import dataclasses
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from regard.core.errors import ConfigError
from regard_lab.cli._cache import reduce
from regard_lab.cli._datastore import KnnOptions, datastore_rows, facts, looked_up, mixing, require_datastore, tell_own
from regard_lab.cli._depth import Evaluated, depth_rows, leave_early, require_as_measured
from regard_lab.cli._options import Device, Ignore, Trust, own_names
from regard_lab.cli._output import console, emit, table, tell, weights_of
from regard_lab.tasks.config import TABLES, TEXTS, ClassificationConfig, TextConfig, TranslationConfig
from regard_lab.tasks.ticking import Ticking

if TYPE_CHECKING:
    from torch import nn

    from regard.models import LanguageModel
    from regard.text.reader import Reader
    from regard_lab.retrieval import Own
    from regard_lab.tasks.base import Examples, Task
    from regard_lab.training import RunConfig
    from regard_lab.training.batches import Batch
    from regard_lab.training.evaluation import Forward


@dataclass(frozen=True)
class Options:
    """The run or weights to evaluate, and the data."""

    run: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, what `pretrained.save`
    wrote, or package:NAME"""
    split: Literal["train", "valid", "test"] | None = None
    """part of the data; None: valid for a run, all of it for published weights"""
    corpus: str | None = None
    """other text than the run's: a bundled corpus, a file of text, one with a text in every row, a folder of such
    files, or a token store; for a run on translation, a .tsv file; for one on classes of texts in a file, a file like
    it, all of it"""
    document: str | None = None
    """published weights: only this document of the corpus, by the name of its file or a year of state_of_the_union"""
    length: int | None = None
    """tokens in a window; None: as the run was trained on, or for published weights 1024, or as many as the network has
    positions for"""
    field: str | None = None
    """of --corpus: column of a file with a text in every row that holds the text"""
    label_field: str | None = None
    """of --corpus, for a run on classes: column that holds the label"""
    separator: str | None = None
    """of --corpus: text that separates the documents of a file of text"""
    suffixes: tuple[str, ...] = ()
    """of --corpus: of a folder, read the files with these endings"""
    holdout: float | None = None
    """of --corpus: share of the documents that validation gets, and again as much for the test"""
    token_files: str | None = None
    """of --corpus, for a run: folder for token files"""
    limit: int = 0
    """as many examples, evenly spaced; 0: all"""
    batch_size: int | None = None
    """examples at a time; None: 16 for a run, 1 for published weights"""
    beam: int | None = None
    """translations: partial ones kept at every step; None: 4"""
    length_penalty: float | None = None
    """translations: exponent of the length that log-probabilities are divided by; None: 0.6"""
    attention: str | None = None
    """published weights: attention of every layer instead of theirs, such as local(window=256)"""
    max_length: int | None = None
    """published weights: positions instead of as many as they have; a position table repeats its rows"""
    weights: Literal["int8"] | None = None
    """published weights: int8 keeps them at 8 bits; on --device cpu"""
    cache: str | None = None
    """of a model that continues text: policy for what every layer keeps of it, such as h2o(budget=256), see regard
    list; None: all"""
    datastore: str | None = None
    """a model that continues text: also look every token up in this folder of regard knn build; None, of a run that
    mixes neighbours in: that of its training"""
    knn: KnnOptions = dataclasses.field(default_factory=KnnOptions)
    exits: str | None = None
    """a model that continues text: leave early by the threshold of regard calibrate: calibrated is what the run keeps,
    else its folder"""
    device: Device = "auto"
    trust: Trust = False
    ignore: Ignore = ()
    json: bool = False
    """machine output on stdout, with the sums of every document"""


_CORPUS_OPTIONS = ("length", "field", "label_field", "separator", "suffixes", "holdout", "token_files")
_TEXT = {**{name: name for name in _CORPUS_OPTIONS if name != "label_field"}, "token_files": "cache"}
_TAKEN = {
    "text": _TEXT,
    "masked": _TEXT,
    "translation": {name: name for name in ("length", "holdout")},
    "classification": {"field": "test_field", "label_field": "test_label_field"},
}
"""task -> what of these it reads another corpus by, and the options of the task that say so"""


def run(options: Options) -> int:
    """Evaluate and print."""
    require_as_measured(options.exits, weights=options.weights, cache=options.cache, datastore=options.datastore)
    from regard.integrations import pretrained

    said = Evaluated()
    with weights_of(options.run):
        evaluation = _published(options, said) if pretrained.recognised(options.run) else _run(options, said)
    depth, datastore = said.depth(), said.datastore
    if datastore is None and options.datastore is not None:
        datastore = facts(options.datastore, options.knn)
    if options.json:
        more = {"depth": depth, "datastore": datastore}
        emit({**evaluation, **{name: found for name, found in more.items() if found}})
        return 0
    rows = [
        (key, f"{value:.4f}" if isinstance(value, float) else value)
        for key, value in evaluation.items()
        if key not in ("documents", "metrics") and value is not None and not (key == "bytes" and not value)
    ]
    rows += [*depth_rows(depth), *(datastore_rows(datastore) if datastore else ())]
    screen = console()
    screen.print(table("what", "value", rows=rows))
    metrics = evaluation.get("metrics")
    if isinstance(metrics, dict):
        names = next(iter(metrics.values()))
        shown = [(row, *(f"{values[name]:.4f}" for name in names)) for row, values in metrics.items()]
        screen.print(table("on the same examples", *names, rows=shown))
    return 0


def _run(options: Options, said: Evaluated) -> dict[str, object]:
    from regard.models import LanguageModel
    from regard_lab.retrieval import LookedUp, Own
    from regard_lab.training import evaluate, load
    from regard_lab.training.beside import alone
    from regard_lab.training.evaluation import straight

    loaded = load(options.run, device=options.device, trust=options.trust)
    for name in ("document", "attention", "max_length", "weights"):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            says = "task says what is read" if name == "document" else "model is as trained"
            raise ConfigError(f"{options.run} is a run, whose {says}: --{flag} is for published weights")
    given = _given(options)
    if given and options.corpus is None:
        raise ConfigError(f"{options.run} is a run, whose task says what is read: {_flags(given)} goes with --corpus")
    if options.exits is not None:
        if not isinstance(loaded.model, LanguageModel) or loaded.config.task.name != "text":
            raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}: --exits are for text")
        said.calibration = leave_early(loaded.model, options.exits, options.run, published=False)
    task, split = None, options.split
    if options.corpus is not None:
        trained_task = loaded.config.task
        taken = _TAKEN.get(trained_task.name, {})
        if others := [name for name in given if name not in taken]:
            raise ConfigError(f"{options.run} was trained on {trained_task.name}, which takes no {_flags(others)}")
        reads: dict[str, Any] = {taken[name]: value for name, value in given.items()}
        if isinstance(trained_task, TextConfig | TranslationConfig):
            unread = _unread(options.corpus) if isinstance(trained_task, TextConfig) else {}
            task = replace(trained_task, **{**unread, **reads}, corpus=options.corpus)
        elif isinstance(trained_task, ClassificationConfig) and trained_task.from_table:
            if split not in (None, "test"):
                raise ConfigError(f"{options.corpus} is read whole, as the test; leave --split {split} out")
            task, split = replace(trained_task, **reads, test=options.corpus), "test"
        else:
            raise ConfigError(f"{options.run} was trained on {trained_task.name}, which takes no --corpus")
    read = loaded.config.task if task is None else task
    with _named(options):
        if isinstance(read, TextConfig):
            said.reads(read, split or "valid")
    if options.cache is not None:
        if not isinstance(loaded.model, LanguageModel):
            raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}: --cache is for decoders")
        reduce(loaded.model, options.cache)
    forward, beside, own = straight, alone, None
    if isinstance(loaded.model, LanguageModel) and loaded.model.config.neighbours:
        found = mixing(options, loaded)
        said.datastore = facts(str(found.store.folder), options.knn, neighbours=found.k)

        own = None if options.knn.own else Own(found.store)

        def beside(config: "RunConfig", task: "Task") -> "Task":
            looked = LookedUp(task, found, leaving_out=own)
            tell(looked.cut_otherwise(split or "valid"))
            return looked
    elif options.datastore is not None:
        if not isinstance(loaded.model, LanguageModel) or not isinstance(read, TextConfig) or read.name != "text":
            raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}: --datastore is for text")
        forward, own = _forward(options, loaded.model, loaded.tokenizer, read.length)
    else:
        require_datastore(options.knn)
    with _named(options), tell_own(own):
        return evaluate(
            loaded,
            task,
            split or "valid",
            batch_size=16 if options.batch_size is None else options.batch_size,
            limit=options.limit,
            beams=options.beam,
            length_penalty=options.length_penalty,
            forward=said.counting(loaded.model, forward),
            beside=beside,
        )


def _forward(
    options: Options, model: "LanguageModel", reader: "Reader | None", length: int
) -> "tuple[Forward, Own | None]":
    """What the model says of a batch with the datastore, and what leaves own entries out, unless they are asked for."""
    from regard_lab.retrieval.documents import other_windows

    assert options.datastore is not None
    mixture = looked_up(options.datastore, options.knn, model, reader)
    tell(other_windows(mixture.store, length))
    forward, own = (mixture.with_own, None) if options.knn.own else (mixture.without_own, mixture.own)
    targets, progress = 0, Ticking("targets looked up")

    def ticking(model: "nn.Module", batch: "Batch", examples: "Examples") -> Any:
        nonlocal targets
        output = forward(model, batch, examples)
        targets += batch.tokens
        progress(targets)
        return output

    return ticking, own


def _given(options: Options) -> dict[str, Any]:
    """What is said of how a corpus is read."""
    found = {name: getattr(options, name) for name in _CORPUS_OPTIONS}
    return {name: value for name, value in found.items() if value not in (None, ())}


def _unread(corpus: str) -> dict[str, Any]:
    """What a run says of its own corpus and this one has no use for."""
    from regard_lab.tasks.token_store import is_store

    if is_store(corpus):
        return {"field": None, "separator": None, "suffixes": (), "holdout": TextConfig.holdout, "cache": None}
    if corpus.lower().endswith(TABLES):
        return {"separator": None, "suffixes": ()}
    if corpus.lower().endswith(TEXTS):
        return {"field": None, "suffixes": ()}
    return {} if Path(corpus).expanduser().is_dir() else {"field": None, "separator": None, "suffixes": ()}


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _named(options: Options) -> AbstractContextManager[None]:
    """Options of the data, in messages, are called as this command calls them; those of a run as `train` does."""
    return nullcontext() if options.corpus is None else own_names()


def _published(options: Options, said: Evaluated) -> dict[str, object]:
    from regard.integrations import pretrained
    from regard_lab.networks import evaluation
    from regard_lab.training.evaluation import straight

    for name in ("beam", "length_penalty"):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"{options.run} continues text: --{flag} is for a run on translation")
    loaded = pretrained.load(
        options.run,
        device=options.device,
        attention=options.attention,
        max_length=options.max_length,
        weights=options.weights or "float32",
        trust=options.trust,
        ignore=options.ignore,
    )
    if options.exits is not None:
        said.calibration = leave_early(loaded.decoder, options.exits, options.run, published=True)
    length = min(1024, loaded.config.max_length) if options.length is None else options.length
    given = _given(options)
    if others := [name for name in ("label_field", "token_files") if name in given]:
        raise ConfigError(f"{options.run} has published weights, which read text alone: {_flags(others)} is for a run")
    task = TextConfig(**{**given, "length": length})
    task = task if options.corpus is None else replace(task, corpus=options.corpus)
    with _named(options):
        said.reads(task, options.split)
    reduce(loaded.decoder, options.cache)
    forward, own = straight, None
    if options.datastore is not None:
        forward, own = _forward(options, loaded.decoder, loaded.reader, length)
    else:
        require_datastore(options.knn)
    with _named(options), tell_own(own):
        return evaluation.evaluate(
            loaded,
            task,
            document=options.document,
            split=options.split,
            batch_size=1 if options.batch_size is None else options.batch_size,
            limit=options.limit,
            parts=options.datastore is not None,
            forward=said.counting(loaded.decoder, forward),
        )
