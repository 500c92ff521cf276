"""Cost over length: forward, forward + backward and decoding of mechanisms, paired with exact attention in one run.

Run as `python -m regard.benchmark.sweep` it reads a `Plan` as JSON from standard input and writes the rows as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.benchmark.cost import counted
from regard.benchmark.timing import Timing, isolated, paired
from regard.catalog import build, describe
from regard.core import Attention
from regard.info import Heads

SDPA = "torch sdpa"
"""the name of the row that times F.scaled_dot_product_attention itself"""


@dataclass(frozen=True)
class Plan:
    """What to time.

    Args:
        specs: mechanisms.
        lengths: sequence lengths.
        heads, key_dim: the shape (1, heads, length, key_dim).
        causal: causal or bidirectional.
        passes: any of "forward", "both" (forward + backward), "decode" (one token after `length` tokens).
        rounds: timed turns.
        seconds: stop starting longer lengths after this, for each pass.
        threads: CPU threads.
    """

    specs: tuple[str, ...]
    lengths: tuple[int, ...]
    heads: int = 8
    key_dim: int = 64
    causal: bool = True
    passes: tuple[str, ...] = ("forward", "both", "decode")
    rounds: int = 5
    seconds: float = 60.0
    threads: int = 2


@dataclass(frozen=True)
class Row:
    """One measurement: seconds per call (per token for "decode"), quartiles, and the state's bytes (decode only)."""

    spec: str
    length: int
    kind: str
    seconds: float
    low: float
    high: float
    state_bytes: int | None = None


def sweep(plan: Plan, *, fixed_allocation: bool = True) -> list[Row]:
    """Measure in a process of its own, under fixed or default allocation."""
    answer = isolated(
        "regard.benchmark.sweep", json.dumps(asdict(plan)), fixed_allocation=fixed_allocation, threads=plan.threads
    )
    return [Row(**row) for row in json.loads(answer)]


def measure(plan: Plan) -> list[Row]:
    """Measure in this process."""
    torch.set_num_threads(plan.threads)
    rows: list[Row] = []
    for kind in plan.passes:
        spent = 0.0
        for length in sorted(plan.lengths):
            calls, sizes = _calls(plan, kind, length)
            if not calls or spent > plan.seconds:
                continue
            timings = paired(calls, rounds=plan.rounds, budget_seconds=max(plan.seconds - spent, 0.0))
            spent += sum(t.seconds for t in timings.values()) * (plan.rounds + 1)
            rows += [_row(spec, length, kind, t, sizes.get(spec)) for spec, t in timings.items()]
    return rows


def _row(spec: str, length: int, kind: str, timing: Timing, state_bytes: int | None) -> Row:
    calls = TOKENS if kind == "decode" else 1
    return Row(spec, length, kind, timing.seconds / calls, timing.low / calls, timing.high / calls, state_bytes)


def _calls(plan: Plan, kind: str, length: int) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, plan.heads, length, plan.key_dim, generator=draw) for _ in range(3))
    heads = Heads(count=plan.heads, key_dim=plan.key_dim, causal=plan.causal, max_length=2 * max(plan.lengths))
    calls: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    if kind != "decode":
        calls[SDPA] = _call(kind, lambda *x: F.scaled_dot_product_attention(*x, is_causal=plan.causal), (q, k, v))
    for spec in plan.specs:
        mechanism = build(spec, heads).eval()
        keys = q if mechanism.info.shares_query_key else k
        if kind != "decode":
            calls[spec] = _call(kind, lambda *x, m=mechanism: m(*x).values, (q, keys, v))
        elif plan.causal and describe(spec).supports.state:
            calls[spec], sizes[spec] = _decoding(mechanism, (q, keys, v))
    return calls, sizes


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


@dataclass(frozen=True)
class Counted:
    """Operations and elements of one call, counted without a clock."""

    spec: str
    length: int
    kind: str
    operations: int
    elements: int
    largest: int


def count(plan: Plan) -> dict[tuple[str, int, str], Counted]:
    """Count what the calls of a plan do, decoding left out."""
    found: dict[tuple[str, int, str], Counted] = {}
    for kind in plan.passes:
        for length in plan.lengths if kind != "decode" else ():
            for spec, call in _calls(plan, kind, length)[0].items():
                cost = counted(call)
                found[spec, length, kind] = Counted(spec, length, kind, cost.operations, cost.elements, cost.largest)
    return found


TOKENS = 16
"""tokens per timed decoding call"""


def _decoding(mechanism: Attention, inputs: Sequence[Tensor]) -> tuple[Callable[[], object], int]:
    """Each call decodes `TOKENS` more tokens, going on from where the last call stopped, as a long generation does."""
    with torch.no_grad():
        state = mechanism(*inputs, state=mechanism.initial_state(1, dtype=inputs[0].dtype)).state
    assert state is not None
    size, now = state.nbytes, [state]
    tokens = [[x[:, :, at : at + 1] for x in inputs] for at in range(TOKENS)]

    def run() -> None:
        with torch.no_grad():
            for one in tokens:
                now[0] = mechanism(*one, state=now[0]).state

    return run, size


def crossover(rows: Sequence[Row], spec: str, against: str, kind: str = "both") -> int | None:
    """The shortest measured length from which on `spec` is faster than `against`; None: never within the rows."""
    seconds = {(row.spec, row.length): row.seconds for row in rows if row.kind == kind}
    lengths = sorted(length for name, length in seconds if name == spec and (against, length) in seconds)
    found: int | None = None
    for length in reversed(lengths):
        if seconds[spec, length] >= seconds[against, length]:
            break
        found = length
    return found


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.stdin.read())
    given |= {name: tuple(given[name]) for name in ("specs", "lengths", "passes")}
    plan = Plan(**given)
    json.dump([asdict(row) for row in measure(plan)], sys.stdout)
