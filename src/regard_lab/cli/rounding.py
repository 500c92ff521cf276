"""Measure what mechanisms lose over the length when their states are kept in fewer bits.

States are rounded to bfloat16, float16 or int8 (a scale for each vector) after every token, or, where they are lists of
slots, after every 16. Without names, every causal mechanism that keeps a state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import tyro

from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import one_word, parse_numbers, require_positive
from regard_lab.cli._options import Json, Seed, Threads, read
from regard_lab.cli._output import console, finish, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

NOTE = (
    "Relative error of the outputs of the last {window} queries before each length, against the same sequence with an "
    "exact state; computed in float64, {heads} heads of width {key_dim}, random queries and keys of norm {norm:g}."
)


@dataclass(frozen=True)
class Options:
    """The mechanisms to measure, and the lengths."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms, such as linear 'performer(num_features=64)'; none: every causal one that keeps a state"""
    lengths: str = "64 256 1024 4096"
    """first:last, doubling, or numbers such as 1000 4096"""
    roundings: tuple[str, ...] = ("bfloat16", "float16", "int8")
    """formats: bfloat16, float16, int8"""
    piece: int | None = None
    """tokens between two roundings; None: 1 where anything of constant size is kept, else 16"""
    heads: int = 2
    """of random vectors"""
    key_dim: int = 32
    """of random vectors: width of a head"""
    norm: float = 2.0
    """of random queries and keys, divided by key_dim^(1/4): logits lie within -norm^2 and norm^2"""
    threads: Threads = field(default_factory=default_threads)
    seed: Seed = 0
    out: str | None = None
    """folder for results.json"""
    json: Json = False


def parse(words: Sequence[str]) -> Options:
    """Read the words after `regard rounding`."""
    return read(Options, one_word(words, "--lengths"), verb="rounding", description=__doc__)


def run(options: Options) -> int:
    """Measure, show, write."""
    require_positive({name: getattr(options, name) for name in ("heads", "key_dim", "threads")})
    will_write(options.out, "results.json")
    with cpu_threads(options.threads):
        return _measure(options)


def _measure(options: Options) -> int:
    from regard_lab.benchmark import rounding

    config = rounding.RoundingConfig(
        specs=options.specs,
        roundings=options.roundings,
        lengths=parse_numbers(options.lengths),
        piece=options.piece,
        heads=options.heads,
        key_dim=options.key_dim,
        norm=options.norm,
        seed=options.seed,
    )
    screen = console(machine=options.json)
    results = rounding.measure(config, tell=tell)
    columns, rows = rounding.table(results)
    screen.print(table(*columns, rows=rows))
    facts = {"window": rounding.WINDOW, "heads": config.heads, "key_dim": config.key_dim, "norm": config.norm}
    screen.print(NOTE.format(**facts), markup=False)
    for spec, why in results["skipped"].items():
        screen.print(f"{spec} is left out: {why}", markup=False)
    finish(results, options)
    return 0
