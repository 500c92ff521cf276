"""Find how early a decoder may stop, with a guarantee: the threshold of its exits by Learn then Test.

A run keeps it in its folder, where regard generate and regard evaluate find it with --exits calibrated.
"""

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from regard.core.errors import ConfigError, DataError
from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import require_positive
from regard_lab.cli._options import Device, Ignore, Json, Threads, Trust
from regard_lab.cli._output import console, emit, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard.models import LanguageModel
    from regard.text.reader import Reader
    from regard_lab.networks.exits import HeadsKind
    from regard_lab.tasks.config import TextConfig


@dataclass(frozen=True)
class Options:
    """The decoder, what may be lost, and the passages that tell."""

    model: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, what `pretrained.save`
    wrote, or package:NAME"""
    risk: float = 0.05
    """largest expected loss of a passage, between 0 and 1"""
    confidence: float = 0.95
    """probability, over the draw of the passages, that the threshold keeps to it, between 0 and 1"""
    loss: Literal["disagreement", "last", "accuracy"] = "disagreement"
    """of a passage: share of its tokens behind which the likeliest token is another than the full model's; whether that
    is so behind the whole passage; by how much the share of right next tokens falls"""
    heads: Literal["own", "light"] | None = None
    """exits behind every block of a decoder that has none: own reads its last norm and output layer there, light
    first fits a small head to each block. None: those that a run was trained with; own for published weights"""
    test: Literal["hoeffding_bentkus", "binomial"] = "hoeffding_bentkus"
    """p-values; binomial is exact, for a loss of 0 or 1 (last)"""
    thresholds: tuple[float, ...] = ()
    """those that are tested, chosen before the losses are seen; none: a grid for the confidence of the exits"""
    passages: int = 400
    """drawn at random to calibrate by"""
    length: int = 32
    """tokens of a passage"""
    head_passages: int | None = None
    """light: others to fit the heads to; None: four times as many as that needs at least"""
    corpus: str | None = None
    """a bundled corpus, a file of text, or a folder of such files; None: that of the run, or state_of_the_union"""
    split: Literal["train", "valid", "test"] | None = None
    """part of the text; None: valid for a run and its own text, all of it otherwise"""
    seed: int = 0
    """of the draw of the passages"""
    batch_size: int = 16
    """passages at a time"""
    device: Device = "auto"
    threads: Threads = field(default_factory=default_threads)
    trust: Trust = False
    ignore: Ignore = ()
    out: str | None = None
    """new folder for the calibration; None: exits in the folder of a run, and nowhere for published weights"""
    json: Json = False


def run(options: Options) -> int:
    """Calibrate, show, keep."""
    require_positive({name: getattr(options, name) for name in ("passages", "length", "threads", "batch_size")})
    if options.head_passages is not None:
        if options.heads != "light":
            raise ConfigError("--head-passages are for --heads light; leave them out")
        require_positive({"head_passages": options.head_passages})
    grid = options.thresholds
    if any(not 0 <= one <= 1 for one in grid) or any(not one > other for one, other in pairwise(grid)):
        raise ConfigError(f"thresholds must fall from the safest on, from 1 to 0 at most, got {list(grid)}")
    if options.test == "binomial" and options.loss != "last":
        raise ConfigError(f"--test binomial is for a loss of 0 or 1: --loss last, not --loss {options.loss}")
    will_write(_target(options), folder=True, new=True)
    with cpu_threads(options.threads):
        return _calibrate(options)


def _calibrate(options: Options) -> int:
    import torch

    from regard.models.depth.fixed import Fixed
    from regard_lab.benchmark import exits as measuring
    from regard_lab.calibration import calibrate
    from regard_lab.networks import exits
    from regard_lab.retrieval.documents import fingerprint
    from regard_lab.training.exit_heads import fit_light_heads, passages_needed, require_leavable

    asked = {"risk": options.risk, "confidence": options.confidence, "test": options.test}
    least = measuring.require_items(options.passages, **asked)
    model, reader, text, split, seen = _loaded(options)
    target = _target(options)
    plain = isinstance(model.depth, Fixed) and not _is_run(options)
    heads: HeadsKind = options.heads or ("own" if plain else "trained")
    screen = console(machine=options.json)
    if heads != "trained":
        require_leavable(model)
    before = fingerprint(model)
    fitted = 0
    if heads == "light":
        fitted = options.head_passages or 4 * passages_needed(model, options.length)
    elif heads == "own":
        exits.put(model, exits.own_exits(model))
    grid = options.thresholds or _grid(model, heads)
    documents = _documents(text, split, reader)
    longest = max(len(document.ids) for document in documents)
    if options.length >= longest:
        raise DataError(
            f"passages of {options.length} tokens and the next one: the longest document of the text has {longest} "
            "tokens; choose a smaller --length"
        )
    found = measuring.passages(documents, options.length)
    fitting, items = measuring.drawn(found, fitted, options.passages, seed=options.seed, least=least)
    if heads == "light":
        exits.put(model, fit_light_heads(model, torch.from_numpy(fitting[:, :-1]), tell=tell))
    measured = measuring.measure(model, items, grid, loss=options.loss, batch_size=options.batch_size, tell=tell)
    chosen = calibrate(measured.losses, grid, **asked)
    part = f"the {split} part of {text.corpus}" if split else text.corpus
    promise = chosen.promise(
        measuring.LOSSES[options.loss],
        items="passages",
        alike=f"passages of {options.length} tokens drawn like these from {part}",
    )
    origin = {
        "model": before,
        "text": part,
        "corpus": exits.text_facts(text, split),
        "trained_on": seen,
        "length": options.length,
        "seed": options.seed,
        "found": len(found),
        "fitted": fitted,
    }
    calibration = exits.document(chosen, measured, heads=heads, loss=options.loss, promise=promise, origin=origin)
    rows = [
        (
            f"{one['threshold']:g}",
            f"{one['loss']:.4f}",
            f"{one['p_value']:.3g}",
            f"{one['layers']:.2f}",
            f"{one['right']:.1%}",
            "yes" if one["threshold"] in chosen.certified else "",
        )
        for one in calibration["curve"]
    ]
    screen.print(table("threshold", "mean loss", "p-value", f"blocks of {calibration['layers']}", "right", "certified",
                       rows=rows))  # fmt: skip
    screen.print(f"All blocks: {calibration['full']['right']:.1%} of next tokens right.", markup=False)
    screen.print(promise, markup=False)
    screen.print("Of other text, and of longer passages, nothing is promised.", markup=False)
    if not options.thresholds and chosen.threshold == grid[-1] > 0:
        tell("The last threshold passed too: lower ones might, --thresholds of a new calibration names them.")
    if seen:
        tell("The run was trained on some of these passages: text that it has not seen may lose more.")
    if target is not None:
        exits.save(Path(target), calibration, model.depth)
        screen.print(f"Kept in {target}: use it with --exits {_named(options)}", markup=False)
        if split == "valid" and heads != "light" and chosen.threshold is not None:
            other = f"--split test --thresholds {chosen.threshold:g} --out FOLDER"
            screen.print(f"Test the promise on other text: the same command with {other}", markup=False)
    if options.json:
        emit({**calibration, "folder": target, "options": asdict(options)})
    return 0


def _is_run(options: Options) -> bool:
    """Whether a run is calibrated, and not published weights."""
    from regard.integrations import pretrained

    return not pretrained.recognised(options.model)


def _target(options: Options) -> str | None:
    """Where the calibration goes; None: nowhere."""
    from regard_lab.networks.exits import FOLDER

    return options.out or (str(Path(options.model) / FOLDER) if _is_run(options) else None)


def _named(options: Options) -> str:
    return options.out or "calibrated"


def _loaded(options: Options) -> "tuple[LanguageModel, Reader, TextConfig, Any, bool]":
    """The model, its tokenizer, the text, the part of it, and whether a run was trained on some of that text."""
    from regard.integrations import pretrained
    from regard.models import LanguageModel
    from regard_lab.networks import exits
    from regard_lab.tasks.config import TextConfig
    from regard_lab.training import load

    read = TextConfig(corpus="state_of_the_union" if options.corpus is None else options.corpus)
    split: Any = options.split
    seen = False
    if _is_run(options):
        loaded = load(options.model, device=options.device, trust=options.trust)
        if loaded.config.task.name != "text" or not isinstance(loaded.config.task, TextConfig):
            raise ConfigError(
                f"{options.model} was trained on {loaded.config.task.name}: exits are calibrated for text"
            )
        if options.corpus is None:
            read, split = loaded.config.task, options.split or "valid"
        trained = {"corpus": exits.text_facts(loaded.config.task, "train")}
        seen = bool(exits.shares(trained, read, split))
    else:
        loaded = pretrained.load(options.model, device=options.device, trust=options.trust, ignore=options.ignore)
    model, reader = loaded.model, loaded.tokenizer
    if not isinstance(model, LanguageModel) or reader is None:
        raise ConfigError(f"{options.model} is no decoder with a tokenizer, so it has no exits to calibrate")
    return model, reader, read, split, seen


def _documents(text: "TextConfig", split: str | None, reader: "Reader") -> "Sequence[Any]":
    from regard_lab.tasks.corpus import open_corpus

    corpus = open_corpus(text)
    documents = list(corpus.parse())
    if split is not None:
        split_of = corpus.splits(text.holdout)
        documents = [one for one in documents if split_of[one.group] == split]
    if not documents:
        raise DataError(f"{text.corpus} has no text in its part {split!r}")
    return [reader.document(one.text) for one in documents]


def _grid(model: "LanguageModel", heads: "HeadsKind") -> tuple[float, ...]:
    """Thresholds for the confidence of these exits; for trained ones down to 0.

    Raises:
        UnsupportedError: a model without exits.
    """
    from regard_lab.benchmark.exits import COSINES, LOWER, THRESHOLDS, exits_of

    if heads == "light":
        return THRESHOLDS
    grid = COSINES if getattr(exits_of(model), "confidence", None) == "saturation" else THRESHOLDS
    return (*grid, *LOWER) if heads == "trained" else grid
