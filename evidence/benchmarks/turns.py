"""Two versions of regard beside each other: is any call slower than it was?

    git worktree add ../before COMMIT
    python evidence/benchmarks/turns.py ../before/src src                  # every row, 15 turns: some 6 minutes
    python evidence/benchmarks/turns.py ../before/src src --rows 'decode*' 'small*' --turns 31

Each source tree is imported by processes of its own, on one thread and under fixed allocation. The two sides work
strictly in turns, a row at a time, and who goes first alternates, so that a slow moment of the machine hits both. Two
processes of one tree may differ by several percent throughout, by where their memory lies; so both are new ones in
every turn. A turn is as many calls as take about a twelfth of a second, the same number on both sides, in processor
time (`time.process_time`; of commands, that of the child process). A row shows the medians, the median over
turns of new / old, and the interval between the order statistics that hold the true median with at least 95 %. A row
whose whole interval is above 1.03 is SLOWER; with fewer than 6 turns none is. Operations are counted, not timed, and
must be equal. Exit code 7 if a row is slower, counts other operations or fails on one side. Without arguments the
script says how to call it, and ends.
"""

import argparse
import fnmatch
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _harness import LEAST_TURNS, environment, interval

SECONDS = 0.08
SLOWER = 1.03
MORE = 256
"""tokens behind the past of a decoding row"""
DIFFERENT = 7
KERNELS = ("linear", "performer(num_features=256)", "efficient", "rfa(redraw_interval=None)")
PATTERNS = (
    "local(window=256)",
    "longformer(window=64)",
    "bigbird(block_size=64, num_random=1)",
    "strided_union(stride=64)",
    "fixed_union(stride=64, columns=8)",
)
ROUTED = ("lsh(rounds=2, bucket_size=64)", "vector_quantized(num_codes=64, block_size=128)")
SMALL = ("softmax", "linear", "local(window=16)", "performer", "bigbird(block_size=16, num_random=1)", "relu_squared")
COMMANDS = {
    "command: import of models": "import regard.models; regard.AttentionLayer, regard.models.LanguageModel",
    "command: import regard": "import regard",
    "command: regard list": "from regard.cli.main import main; main(['list'])",
}

Call = Callable[[], object]
Row = Callable[[], Call]
Pairs = dict[str, list[tuple[float, float]]]


# ------------------------------------------------------------------------------------------- the side that is measured


def mechanism(spec: str, length: int, heads: int, backward: bool) -> Call:
    """One call of a causal mechanism, on fresh leaves if it goes backward."""
    import torch

    import regard

    attend = regard.build(spec, regard.Heads(count=heads, key_dim=64, causal=True, max_length=length)).eval()
    q, k, v, way = torch.randn(4, 1, heads, length, 64, generator=torch.Generator().manual_seed(0)).unbind()
    q = k if attend.info.shares_query_key else q

    def step() -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        attend(*leaves).values.backward(way)

    return step if backward else torch.no_grad()(lambda: attend(q, k, v))


def decoding(spec: str, past: int, steps: int = 4) -> Call:
    """Some tokens, one at a time, behind a past; the next call goes on behind them, until there are `MORE`."""
    import torch

    import regard

    attend = regard.build(spec, regard.Heads(count=8, key_dim=64, causal=True, max_length=4096)).eval()
    draw, shared = torch.Generator().manual_seed(0), attend.info.shares_query_key
    q, k, v = torch.randn(3, 1, 8, past, 64, generator=draw)
    token = torch.randn(3, 1, 8, 1, 64, generator=draw).unbind()
    token = (token[0], token[0] if shared else token[1], token[2])
    with torch.no_grad():
        start = attend(q, q if shared else k, v, state=attend.initial_state(1)).state
    states = [start]

    @torch.no_grad()
    def step() -> None:
        if states[0].length >= past + MORE:
            states[0] = start
        for _ in range(steps):
            states[0] = attend(*token, state=states[0]).state

    return step


def small_layer(spec: str, backward: bool, **options: Any) -> Call:
    """A layer on few tokens, where what surrounds the arithmetic counts."""
    import torch

    from regard import AttentionLayer

    layer = AttentionLayer(64, spec, heads=4, max_length=128, causal=True, **options).eval()
    x = torch.randn(1, 128, 64, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        layer.zero_grad()
        layer(x.detach().requires_grad_()).hidden.sum().backward()

    return step if backward else torch.no_grad()(lambda: layer(x))


def function(spec: str, length: int) -> Call:
    """`regard.attend`, which finds a mechanism that was built before."""
    import torch

    import regard

    q, k, v = torch.randn(3, 1, 2, length, 16, generator=torch.Generator().manual_seed(0))
    return torch.no_grad()(lambda: regard.attend(q, k, v, spec, causal=True))


def building(spec: str) -> Call:
    import regard

    heads = regard.Heads(count=4, key_dim=16, causal=True, max_length=128)
    return lambda: regard.build(spec, heads)


def decoder(*specs: str) -> tuple[Any, Any]:
    import torch

    from regard.models import LanguageModel, ModelConfig

    config = ModelConfig(dim=64, heads=4, layers=len(specs), attention=specs, vocab_size=256, max_length=128)
    return LanguageModel(config), torch.randint(0, 256, (4, 129), generator=torch.Generator().manual_seed(0))


def training(*specs: str) -> Call:
    """One step of a small decoder: forward, backward, AdamW."""
    import torch
    from torch.nn.functional import cross_entropy

    model, tokens = decoder(*specs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).logits
        cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def generating(*specs: str) -> Call:
    from regard.models.generate import generate

    model, tokens = decoder(*specs)
    return lambda: generate(model, tokens[:1, :16], max_new_tokens=8, temperature=0)


def rows() -> dict[str, Row]:
    """Every row of a process that has imported regard, by name."""
    found: dict[str, Row] = {}
    large, passes = ("softmax", *KERNELS, *PATTERNS, *ROUTED), {"forward": False, "forward + backward": True}
    for spec in large:
        for length, heads in ((1024, 2), (4096, 1)):
            for what, backward in passes.items():
                found[f"{spec}, n={length}, {what}"] = partial(mechanism, spec, length, heads, backward)
    for spec in large:
        found[f"decode {spec}"] = partial(decoding, spec, 1024)
    for spec in SMALL:
        for what, backward in passes.items():
            found[f"small layer {spec}, {what}"] = partial(small_layer, spec, backward)
    found["small layer mix, forward"] = partial(small_layer, "local(window=16):2 + linear:2", False)
    found["small layer rotary, forward"] = partial(small_layer, "softmax", False, position="rotary", kv_heads=2)
    found["small layer alibi, forward + backward"] = partial(small_layer, "local(window=16)", True, position="alibi")
    found["attend softmax, n=16"] = partial(function, "softmax", 16)
    found["attend local(window=16), n=128"] = partial(function, "local(window=16)", 128)
    for spec in ("softmax", "linear", "local(window=16)", "performer"):
        found[f"build {spec}"] = partial(building, spec)
    found["train decoder softmax, linear"] = partial(training, "softmax", "linear")
    found["train decoder local, performer"] = partial(training, "local(window=16)", "performer")
    found["generate softmax, linear"] = partial(generating, "softmax", "linear")
    return found


def command_seconds(code: str) -> float:
    """Processor time of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def work() -> None:
    """Answer one line of JSON for each that comes: {row, times} -> {seconds}, {row, count} -> {operations, ...}."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    from regard_lab.benchmark.cost import counted

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    made: dict[str, Row | Call] = {}
    known = rows()

    def answer(asked: dict[str, Any]) -> dict[str, object]:
        name, times, counting = asked["row"], asked.get("times", 0), asked.get("count", False)
        if name in COMMANDS:
            return {} if counting else {"seconds": sum(command_seconds(COMMANDS[name]) for _ in range(times))}
        if name not in made:
            made[name] = known[name]()
        call = made[name]
        if counting:
            call()
            cost = counted(call)
            return {"operations": cost.operations, "elements": cost.elements, "largest": cost.largest}
        gc.collect()
        gc.disable()
        start = time.process_time()
        for _ in range(times):
            call()
        seconds = time.process_time() - start
        gc.enable()
        return {"seconds": seconds}

    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = answer(asked)
        except Exception as error:  # the other side may serve it, and that is a finding
            traceback.print_exc(limit=-3)
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


# ------------------------------------------------------------------------------------------------ the side that asks


class Side:
    """A process that has imported one source tree."""

    def __init__(self, source: Path) -> None:
        own = environment(PYTHONPATH=str(source.resolve()), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own
        )

    def ask(self, **question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with exit code {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def prepared(sides: Sequence[Side], names: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """How often each row is called in a turn, and what already differs; a row that fails on a side has no turns."""
    times: dict[str, int] = {}
    problems: list[str] = []
    for name in names:
        counts = [side.ask(row=name, count=True) for side in sides]
        failed = [
            (where, found["error"]) for where, found in zip(("old", "new"), counts, strict=True) if "error" in found
        ]
        if failed:
            problems += [f"{name}: fails on the {where} side: {error}" for where, error in failed]
            continue
        old, new = counts
        if old.get("operations") != new.get("operations"):
            problems.append(f"{name}: operations {old['operations']:,} before, {new['operations']:,} now")
        changed = [kind for kind in ("elements", "largest") if old.get(kind) != new.get(kind)]
        for kind in changed:
            print(f"  note: {name}: {kind} {old[kind]:,} before, {new[kind]:,} now", flush=True)
        once = min(sides[0].ask(row=name, times=1)["seconds"] for _ in range(2))
        times[name] = max(1, round(SECONDS / max(once, 1e-6)))
    return times, problems


def measured(sides: Sequence[Side], times: dict[str, int], turn: int) -> dict[str, tuple[float, float]]:
    """Seconds of (old, new), after some calls that do not count."""
    found: dict[str, tuple[float, float]] = {}
    started = time.perf_counter()
    for at, (name, count) in enumerate(times.items()):
        order = (0, 1) if (turn + at) % 2 == 0 else (1, 0)
        for who in order:
            sides[who].ask(row=name, times=max(1, count // 8))
        seconds = {who: sides[who].ask(row=name, times=count)["seconds"] for who in order}
        found[name] = (seconds[0], seconds[1])
    print(f"turn {turn + 1}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def shown(found: Pairs, times: dict[str, int]) -> Iterator[str]:
    """Print a line for each row; the names of those that are slower."""
    print(f"{'row':76} {'old':>10} {'new':>10}   new / old")
    for name, pairs in found.items():
        ratios = [new / old for old, new in pairs]
        low, high = interval(ratios)
        old, new = (1e3 * statistics.median(side) / times[name] for side in zip(*pairs, strict=True))
        slower = low > SLOWER and len(pairs) >= LEAST_TURNS
        word = "  SLOWER" if slower else "  faster" if high < 1 / SLOWER and len(pairs) >= LEAST_TURNS else ""
        print(
            f"{name:76} {old:7.3f} ms {new:7.3f} ms   {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}){word}"
        )
        if slower:
            yield name


def compare(sources: Sequence[Path], turns: int, patterns: Sequence[str]) -> int:
    names = [*rows(), *COMMANDS]
    names = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    times: dict[str, int] = {}
    problems: list[str] = []
    found: Pairs = {}
    for turn in range(turns):
        sides = [Side(source) for source in sources]
        try:
            if not turn:
                times, problems = prepared(sides, names)
            for name, pair in measured(sides, times, turn).items():
                found.setdefault(name, []).append(pair)
        finally:
            for side in sides:
                side.close()
    slower = list(shown(found, times))
    print(f"{len(found)} rows, {turns} turns: {len(slower)} slower than {SLOWER}; {len(problems)} other differences")
    for problem in problems:
        print(f"  {problem}")
    return DIFFERENT if slower or problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="*", metavar="SOURCE", help="the old folder src, then the new one")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    if len(options.sources) != 2:
        parser.print_usage()
        return 2 if options.sources else 0
    return compare(options.sources, options.turns, options.rows)


if __name__ == "__main__":
    sys.exit(main())
