"""Time mechanisms over length, paired with exact attention in one run.

Forward, forward + backward, and decoding; CPU, float32, under fixed memory allocation.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import tyro

from regard.core.errors import ConfigError
from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import one_word, parse_numbers
from regard_lab.cli._options import Json, Threads, read
from regard_lab.cli._output import console, emit, table


@dataclass(frozen=True)
class Options:
    """The mechanisms to time, and how often."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms, such as softmax 'local(window=256)' linear"""
    lengths: str = "512:8192"
    """first:last, doubling, or numbers such as 1000 4096"""
    heads: int = 8
    """heads; the shape is (1, heads, length, key_dim)"""
    key_dim: int = 64
    """width of a head"""
    bidirectional: bool = False
    """every position sees every other (default: causal)"""
    passes: tuple[Literal["forward", "both", "decode"], ...] = ("forward", "both", "decode")
    """forward, both (forward + backward), decode (one token after so many; causal only)"""
    rounds: int = 5
    """timed turns"""
    seconds: float = 60.0
    """for each pass, start no longer length after this; the shortest is always timed"""
    threads: Threads = field(default_factory=default_threads)
    json: Json = False


def parse(words: Sequence[str]) -> Options:
    """Read the words after `regard bench`."""
    return read(Options, one_word(words, "--lengths"), verb="bench", description=__doc__)


def run(options: Options) -> int:
    """Time and show."""
    from regard_lab.benchmark import sweep
    from regard_lab.benchmark.config import MARK
    from regard_lab.report.summary import marked

    if not options.specs:
        raise ConfigError("name what to time, such as softmax linear; regard list shows what there is")
    config = sweep.SweepConfig(
        specs=options.specs,
        lengths=parse_numbers(options.lengths),
        heads=options.heads,
        key_dim=options.key_dim,
        causal=not options.bidirectional,
        passes=options.passes,
        rounds=options.rounds,
        seconds=options.seconds,
        threads=options.threads,
    )
    for spec in config.specs:
        config.build(spec)
    rows = sweep.sweep(config)
    if options.json:
        emit({"plan": asdict(config), "rows": [asdict(row) for row in rows]})
        return 0
    exact = {(row.length, row.kind): row for row in rows if row.spec == sweep.SDPA}
    lines = []
    for row in rows:
        against = exact.get((row.length, row.kind))
        lines.append(
            (
                row.spec,
                row.kind,
                f"{row.length:,}",
                marked(f"{row.seconds * 1e3:.3f}", row.untrusted),
                f"{row.low * 1e3:.3f} to {row.high * 1e3:.3f}",
                f"{against.seconds / row.seconds:.2f}" if against and not (against.untrusted or row.untrusted) else "",
                f"{row.state_bytes:,}" if row.state_bytes is not None else "",
            )
        )
    screen = console()
    screen.print(table("mechanism", "pass", "tokens", "ms", "interval", "times SDPA", "state bytes", rows=lines))
    screen.print(
        f"(1, {config.heads}, tokens, {config.key_dim}), float32, {config.threads} threads; medians of turns in one "
        "process under fixed allocation, with 95 % intervals. Decoding: one token.",
        markup=False,
    )
    if doubts := [row.untrusted for row in rows if row.untrusted]:
        screen.print(
            f"{len(doubts)} of {len(rows)} figures, marked {MARK}, cannot be trusted: {doubts[0]}. "
            "Time again on a quiet machine.",
            markup=False,
        )
    return 0
