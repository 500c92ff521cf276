"""Train two small layers on associative recall and measure what they find, against the bytes that they keep.

Without names: every causal mechanism, which takes about half an hour. Exits 7 if a control missed: softmax finds nearly
everything, and equal weights no more than a guess.
"""

from dataclasses import dataclass, field

import tyro

from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import require_positive
from regard_lab.cli._options import Json, Seed, Threads
from regard_lab.cli._output import console, finish, table, tell, will_write
from regard_lab.cli._threads import cpu_threads


@dataclass(frozen=True)
class Options:
    """The layers to train, and for how long."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms; `a / b` is one for each of the two layers; none: every causal mechanism"""
    pairs: tuple[int, ...] = (4,)
    """how many are to be remembered, one training for each number"""
    key_dim: int = 32
    """width of the layers, which have one head"""
    steps: int = 200
    """of a training"""
    rates: tuple[float, ...] = (1e-2,)
    """learning rates; the best one on validation sequences is shown, on others"""
    trainings: int = 1
    """of each mechanism, with seeds that count from --seed"""
    threads: Threads = field(default_factory=default_threads)
    seed: Seed = 0
    out: str | None = None
    """folder for results.json and retrieval.html"""
    json: Json = False


def run(options: Options) -> int:
    """Train, show, write; 7 if a control missed."""
    require_positive({name: getattr(options, name) for name in ("key_dim", "threads")})
    will_write(options.out, "results.json", "retrieval.html")
    with cpu_threads(options.threads):
        return _measure(options)


def _measure(options: Options) -> int:
    from regard_lab.benchmark import retrieval
    from regard_lab.report import retrieval as page

    config = retrieval.RetrievalConfig(
        specs=options.specs or None,
        pairs=options.pairs,
        dim=options.key_dim,
        steps=options.steps,
        rates=options.rates,
        seeds=tuple(range(options.seed, options.seed + options.trainings)),
    )
    screen = console(machine=options.json)
    results = retrieval.measure(config, tell=tell)
    screen.print(table(*page.columns(results), rows=page.rows(results)))
    for line in page.notes(results):
        screen.print(line, markup=False)
    finish(results, options, page)
    return 0 if all(one["reached"] for one in results["controls"]) else 7
