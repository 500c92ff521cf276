"""Measure how many stored pairs a mechanism finds again, untrained, against the bytes that it keeps.

Without names: exact attention, and kernels from the sharpest to the flattest. Exits 7 if a control missed: softmax
finds every pair, and equal weights one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tyro

from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import require_positive
from regard_lab.cli._options import Json, Seed, Threads
from regard_lab.cli._output import console, finish, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

NOTE = (
    "Share of stored pairs whose value is the nearest to the output when their key is asked for, ± a standard error "
    "over trials; untrained, random unit keys and values of width {dim}. Every mechanism at the best of the sharpness "
    "that was tried, since a projection before it could learn that. State: of one head in float32."
)


@dataclass(frozen=True)
class Options:
    """The pairs to store, and the mechanisms to store them in."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms, such as softmax 'linear(feature_map=relu)'; none: exact attention and a row of kernels"""
    pairs: tuple[int, ...] = (8, 32, 128)
    """how many are stored"""
    key_dim: int = 32
    """width of keys and of values"""
    sharpness: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    """logits of a key with itself; the best one for each mechanism is shown"""
    trials: int = 32
    """independent sets of pairs"""
    threads: Threads = field(default_factory=default_threads)
    seed: Seed = 0
    out: str | None = None
    """folder for results.json"""
    json: Json = False


def run(options: Options) -> int:
    """Measure, show, write; 7 if a control missed."""
    require_positive({name: getattr(options, name) for name in ("key_dim", "threads")})
    will_write(options.out, "results.json")
    with cpu_threads(options.threads):
        return _measure(options)


def _measure(options: Options) -> int:
    from regard_lab.benchmark import capacity

    config = capacity.CapacityConfig(
        specs=options.specs or capacity.SPECS,
        pairs=options.pairs,
        sharpness=options.sharpness,
        dim=options.key_dim,
        trials=options.trials,
        seed=options.seed,
    )
    screen = console(machine=options.json)
    results = capacity.measure(config, tell=tell)
    columns = ("mechanism", "state bytes", "sharpness", *(f"{pairs} pairs" for pairs in config.pairs))
    screen.print(table(*columns, rows=[_shown(spec, results) for spec in config.specs]))
    screen.print(NOTE.format(dim=config.dim), markup=False)
    missed = [one for one in results["controls"] if not one["reached"]]
    for one in missed:
        screen.print(f"CONTROL MISSED: {one['title']}: {one['value']}, not {one['expected']}", markup=False)
    finish(results, options)
    return 7 if missed else 0


def _shown(spec: str, results: Mapping[str, Any]) -> tuple[str, ...]:
    """A mechanism at its best sharpness."""
    best = results["best"][spec]
    rows = [row for row in results["rows"] if (row["spec"], row["sharpness"]) == (spec, best)]
    sizes = [f"{row['state_bytes']:,}" for row in rows if row["state_bytes"] is not None]
    return (
        spec,
        " to ".join(dict.fromkeys((*sizes[:1], *sizes[-1:]))),
        f"{best:g}",
        *(f"{row['recall']:.3f} ± {row['standard_error']:.1g}" for row in rows),
    )
