"""Cost over length: forward, forward + backward and decoding of mechanisms, paired with exact attention in one run.

Run as `python -m regard_lab.benchmark.sweep` it serves `sweep`: a process of its own for every sweep.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count as count_from
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.catalog import build, describe
from regard.core.attention import Attended, Attention, State
from regard.core.errors import ConfigError, nearest
from regard.core.info import Heads
from regard_lab.benchmark.resting import resting_inputs
from regard_lab.benchmark.threads import default_threads, require_threads
from regard_lab.benchmark.timing import REPEATS, Timing, paired
from regard_lab.benchmark.worker import in_worker, serve

SDPA = "torch sdpa"
"""the name of the row that times F.scaled_dot_product_attention itself"""
PASSES = ("forward", "both", "decode")
DECODED_TOKENS = 16
"""tokens per timed decoding call"""


@dataclass(frozen=True)
class SweepConfig:
    """The mechanisms, lengths and passes to time.

    Args:
        specs: mechanisms.
        lengths: sequence lengths.
        heads, key_dim: the shape (1, heads, length, key_dim).
        causal: causal or bidirectional.
        passes: any of "forward", "both" (forward + backward), "decode" (one token after `length` tokens).
        rounds: timed turns.
        seconds: for each pass; a length that would not be done by then is not begun. The shortest is always timed.
        threads: CPU threads.

    Raises:
        ConfigError: nothing to time, an unknown pass, or a number that is too small.
    """

    specs: tuple[str, ...]
    lengths: tuple[int, ...]
    heads: int = 8
    key_dim: int = 64
    causal: bool = True
    passes: tuple[str, ...] = PASSES
    rounds: int = 5
    seconds: float = 60.0
    threads: int = field(default_factory=default_threads)

    def __post_init__(self) -> None:
        require_threads(self.threads)
        problems = [f"{name} must not be empty" for name in ("specs", "lengths", "passes") if not getattr(self, name)]
        problems += [f"no pass {name!r}: {nearest(name, PASSES)}" for name in self.passes if name not in PASSES]
        problems += [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in ("heads", "key_dim", "rounds", "threads")
            if getattr(self, name) < 1
        ]
        problems += [f"lengths must be at least 1, got {length}" for length in self.lengths if length < 1]
        if not self.seconds >= 0:
            problems.append(f"seconds must be at least 0, got {self.seconds}")
        if problems:
            raise ConfigError("\n".join(problems))

    def build(self, spec: str) -> Attention:
        """The mechanism that is timed.

        Raises:
            ConfigError: an unknown mechanism or option. UnsupportedError: it cannot be causal.
        """
        longest = max(self.lengths) + DECODED_TOKENS * (self.rounds + 1)
        heads = Heads(count=self.heads, key_dim=self.key_dim, causal=self.causal, max_length=longest)
        return build(spec, heads).eval()


@dataclass(frozen=True)
class Row:
    """One measurement: seconds per call (per token for "decode") with their interval, how many turns they are the
    median of, why they cannot be trusted (None: they can), and the state's bytes (decode only).
    """

    spec: str
    length: int
    kind: str
    seconds: float
    low: float
    high: float
    state_bytes: int | None = None
    turns: int = 1
    untrusted: str | None = None


def sweep(config: SweepConfig) -> list[Row]:
    """Measure in a process of its own, under fixed allocation."""
    rows = in_worker("regard_lab.benchmark.sweep", asdict(config), threads=config.threads)
    return [Row(**row) for row in rows]


def measure(config: SweepConfig) -> list[Row]:
    """Measure in this process."""
    torch.set_num_threads(config.threads)
    rows: list[Row] = []
    for kind in config.passes:
        until = time.perf_counter() + config.seconds
        turn, before = 0.0, min(config.lengths)
        for length in sorted(config.lengths):
            # A warm-up and one turn, which grow with the square of the length at most.
            least = 2 * turn * (length / before) ** 2
            if length > min(config.lengths) and time.perf_counter() + least > until:
                break
            calls, sizes = _calls(config, kind, length)
            if calls:
                left = max(until - time.perf_counter(), 0.0)
                timings = paired(calls, rounds=config.rounds, budget_seconds=left)
                rows += [_row(spec, length, kind, t, sizes.get(spec)) for spec, t in timings.items()]
                turn, before = sum(timing.seconds for timing in timings.values()), length
    return rows


def _row(spec: str, length: int, kind: str, timing: Timing, state_bytes: int | None) -> Row:
    calls = DECODED_TOKENS if kind == "decode" else 1
    seconds = (timing.seconds / calls, timing.low / calls, timing.high / calls)
    return Row(spec, length, kind, *seconds, state_bytes, timing.turns, timing.untrusted)


def _calls(config: SweepConfig, kind: str, length: int) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, config.heads, length, config.key_dim, generator=draw) for _ in range(3))
    calls: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    if kind != "decode":
        calls[SDPA] = _call(kind, lambda *x: F.scaled_dot_product_attention(*x, is_causal=config.causal), (q, k, v))
    for spec in config.specs:
        mechanism = config.build(spec)
        keys = q if mechanism.info.shares_query_key else k
        more = resting_inputs(mechanism, q, keys)
        if kind != "decode":
            calls[spec] = _call(kind, lambda *x, m=mechanism: _attend(m, *x).values, (q, keys, v, *more.values()))
        elif config.causal and describe(spec).supports.state:
            calls[spec], sizes[spec] = _decoding(mechanism, (q, keys, v, *more.values()), config.rounds + 1)
    return calls, sizes


def _attend(
    mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor, state: State | None = None
) -> Attended:
    """A call with the declared inputs behind the values."""
    return mechanism(q, k, v, inputs=dict(zip(mechanism.info.inputs, inputs, strict=True)), state=state)


def _call(kind: str, forward: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Callable[[], object]:
    if kind == "forward":

        def run() -> None:
            with torch.no_grad():
                forward(*inputs)

    else:
        leaves = [x.clone().requires_grad_() for x in inputs]
        gradient = torch.ones_like(inputs[2])

        def run() -> None:
            forward(*leaves).backward(gradient)
            for x in leaves:
                x.grad = None

    return run


def _decoding(mechanism: Attention, tensors: Sequence[Tensor], calls: int) -> tuple[Callable[[], object], int]:
    """Each call decodes `DECODED_TOKENS` more tokens, going on from where the last call stopped, as generation does.
    After so many calls it begins again, from a state that was read beforehand: repeats are not of longer sequences.
    """
    states: list[State] = []
    with torch.no_grad():
        for _ in range(REPEATS):
            state = _attend(mechanism, *tensors, state=mechanism.initial_state(1, dtype=tensors[0].dtype)).state
            assert state is not None
            states.append(state)
    size = states[0].nbytes
    tokens = [[x[:, :, at : at + 1] for x in tensors] for at in range(DECODED_TOKENS)]
    done = count_from(0)

    def run() -> None:
        at = next(done) // calls
        with torch.no_grad():
            for token in tokens:
                after = _attend(mechanism, *token, state=states[at]).state
                assert after is not None
                states[at] = after

    return run, size


def crossover(rows: Sequence[Row], spec: str, against: str, kind: str = "both") -> int | None:
    """The shortest measured length from which on `spec` is faster than `against`; None: never within the rows. Rows
    that cannot be trusted are none.
    """
    seconds = {(row.spec, row.length): row.seconds for row in rows if row.kind == kind and not row.untrusted}
    lengths = sorted(length for name, length in seconds if name == spec and (against, length) in seconds)
    shortest: int | None = None
    for length in reversed(lengths):
        if seconds[spec, length] >= seconds[against, length]:
            break
        shortest = length
    return shortest


def _serve(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    settings |= {name: tuple(settings[name]) for name in ("specs", "lengths", "passes")}
    return (asdict(row) for row in measure(SweepConfig(**settings)))


if __name__ == "__main__":
    sys.exit(serve(_serve))
