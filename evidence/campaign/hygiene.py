"""Every name of the catalog as a guest in a process: threads, forks, new processes, global state, leaks, limits."""

import gc
import logging
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import regard
from evidence.campaign import children
from evidence.campaign.log import ROOT, Outcome

NAME = "hygiene"
BATCH = 100
STEPS, FEW = 10_000, 600
"""small calls, in which nothing may grow"""
OBJECTS, BYTES = 64, 6 << 20
"""by which a process may differ after them: what an allocator keeps is no leak"""
HUGE = 1 << 40
"""no size is as large"""
TAKEN, SECONDS = 256 << 20, 5.0
"""bytes and seconds of a processor that a refusal may take"""
SPAWNED = 6
SHORT = {"threads": 4, "fork": 4, "global state": 6, "a few steps": 3, "limits": 4}

OF_TORCH = ("TORCHINDUCTOR_CACHE_DIR",)
"""variables that torch sets where its compiler is imported"""

_READ = """
import pickle, sys
import torch
torch.set_grad_enabled(False)
torch.set_num_threads(1)
mechanism, q, k, v, more, wanted = pickle.loads(open(sys.argv[1], "rb").read())
assert torch.equal(mechanism(q, k, v, inputs=more).values, wanted), "other bits"
"""


def _case(kind: str, folder: Path, seed: int) -> Outcome:
    """A name of the catalog, in a child; what is wrong is its output."""
    from regard import catalog
    from regard.testing.inputs import Subject

    names = regard.names()
    name = names[seed * (7 if kind == "spawn" else 1) % len(names)]

    def child() -> int:
        import torch

        torch.set_num_threads(1)
        cls = catalog.resolve(name)[0]
        said = CHECKS[kind](Subject(cls, cls.samples[0] if cls.samples else {}), folder)
        print(said, end="")
        return 0

    done = children.call(child, folder, memory=2 << 30 if kind == "limits" else None, seconds=1800.0)
    failed = f"{'hung' if done.hung else f'exit code {done.code}'}: {done.said}" if done.code else ""
    wrong = done.out.strip() or failed
    counts = {"steps": STEPS if kind == "steps" else FEW} if "steps" in kind else {}
    if wrong:
        return Outcome(f"{name}: {wrong}", True, counts, done.seconds, done.peak)
    return Outcome("as it should be", False, counts, done.seconds, done.peak)


def _subject(subject: Any) -> tuple[Any, Any]:
    """A mechanism and its inputs."""
    mechanism = subject.build(subject.modes[0])
    return mechanism, subject.inputs(mechanism)


def _threads(subject: Any, folder: Path) -> str:
    """Threads that share a mechanism get what each would get alone."""
    import torch

    from regard.testing.inputs import run

    mechanism, x = _subject(subject)
    inputs = [x.map(lambda t, s=scale: t * s if t.is_floating_point() else t) for scale in (1.0, 0.9, 0.8, 0.7)]
    alone = [run(mechanism, each).values for each in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: run(mechanism, inputs[at % 4]).values, range(40)))
    different = sum(not torch.equal(values, alone[at % 4]) for at, values in enumerate(found))
    return f"{different} of 40 calls gave other bits" if different else ""


def _fork(subject: Any, folder: Path) -> str:
    """A child of a process that has used it gets the same bits, backward included."""
    import torch

    mechanism, x = _subject(subject)
    wanted = _used(mechanism, x)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = _used(mechanism, x)
        same = len(found) == len(wanted) and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        os.write(writer, b"same" if same else b"other bits")
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    said = os.read(reader, 99).decode()
    return "" if said == "same" else f"after a fork: {said or 'nothing'}"


def _spawn(subject: Any, folder: Path) -> str:
    """A new process that is given it gets the same bits."""
    from regard.testing.inputs import run

    mechanism, x = _subject(subject)
    path = folder / f"{os.getpid()}.pickle"
    path.write_bytes(pickle.dumps((mechanism, x.q, x.k, x.v, x.more, run(mechanism, x).values)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], env=environment, capture_output=True, text=True)
    return done.stderr.strip()[-300:] or (
        f"a new process ends with exit code {done.returncode}" if done.returncode else ""
    )


def _used(mechanism: Any, x: Any, *, train: bool = False) -> list[Any]:
    """A call forward and back; the values and all gradients."""
    from regard.testing.inputs import call

    mechanism.train(train)
    mechanism.zero_grad()
    leaves = x.clone().leaves()
    found = call(mechanism, leaves)
    if not found.values.requires_grad:
        return [found.values]
    found.values.square().sum().backward()
    every = [t.grad for t in leaves.named().values()] + [p.grad for p in mechanism.parameters()]
    return [found.values.detach(), *(g.clone() for g in every if g is not None)]


def _snapshot() -> dict[str, object]:
    """What a process has of its own."""
    import numpy as np
    import torch

    return {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "Python's random state": random.getstate(),
        "numpy's random state": str(np.random.get_state()),  # noqa: NPY002  # the global one is meant
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads of torch": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "precision of products": torch.get_float32_matmul_precision(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "environment": {name: value for name, value in os.environ.items() if name not in OF_TORCH},
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in sorted(signal.valid_signals())],
        "working folder": os.getcwd(),
        "sys.path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "handlers of the log": list(logging.getLogger().handlers),
        "level of the log": logging.getLogger().level,
        "threads": threading.active_count(),
        "excepthook": sys.excepthook,
        "printing": str(torch._tensor_str.PRINT_OPTS),
    }


def _global_state(subject: Any, folder: Path) -> str:
    """Building, calling, training, streaming and saving leave the process as it was, at the first time and later.

    Of the first time filters of warnings are left out, which torch's compiler adds where it is imported.
    """
    first = _snapshot()
    _used(*_subject(subject), train=True)
    before = _snapshot()
    mechanism, x = _subject(subject)
    _used(mechanism, x)
    _used(mechanism, x, train=True)
    mechanism.eval()
    _streamed(mechanism, x)
    pickle.loads(pickle.dumps(mechanism))
    after = _snapshot()
    at_once = {name for name in first if first[name] != before[name]} - {"warnings"}
    return ", ".join(name for name in before if name in at_once or before[name] != after[name])


def _streamed(mechanism: Any, x: Any) -> None:
    from regard.testing.inputs import run

    if mechanism.info.supports.state and mechanism.heads.causal:
        state = mechanism.initial_state(x.q.shape[0])
        for at in range(3):
            state = run(mechanism, x.slots(at, at + 1), state=state).state


def _steps(subject: Any, folder: Path, *, steps: int) -> str:
    """Small calls, one after the other: forward, streamed, now and then trained."""
    from regard.testing.inputs import run

    mechanism, x = _subject(subject)

    def some(count: int) -> None:
        for at in range(count):
            if at % 10 == 0:
                _used(mechanism, x, train=True)
                mechanism.eval()
            elif at % 10 == 5:
                _streamed(mechanism, x)
            else:
                run(mechanism, x)

    some(max(100, steps // 10))
    objects, resident = _held()
    some(steps)
    more_objects, more_resident = _held()
    if more_objects - objects > OBJECTS:
        return f"{more_objects - objects} more objects after {steps} steps"
    if more_resident - resident > BYTES:
        return f"{(more_resident - resident) >> 10} KiB more after {steps} steps"
    return ""


def _held() -> tuple[int, int]:
    """Objects and resident bytes."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return len(gc.get_objects()), resident


def _limits(subject: Any, folder: Path) -> str:
    """Sizes that cannot be are refused by name, before memory is taken for them."""
    from regard.core.errors import RegardError

    wrong = []
    options = {**subject.cls.filled({}, "campaign"), **subject.options}
    tried = {f"heads.{name}": {name: HUGE} for name in ("count", "key_dim", "value_dim", "max_length")}
    tried |= {name: {} for name, value in options.items() if type(value) is int}
    for what, heads in tried.items():
        changed = {} if heads else {what: HUGE}
        began, peak, said = time.process_time(), _peak(), []
        try:
            subject.cls(subject.heads(subject.modes[0], **heads), **{**subject.options, **changed})
        except RegardError as error:
            said += [] if str(error) else ["an error without a message"]
        except BaseException as error:
            said.append(f"{type(error).__name__}: {str(error)[:120]}")
        seconds, taken = time.process_time() - began, _peak() - peak
        said += [f"took {seconds:.1f} s"] if seconds > SECONDS else []
        said += [f"took {taken >> 20} MiB"] if taken > TAKEN else []
        wrong += [f"{what}={HUGE}: {each}" for each in said]
    return "; ".join(wrong)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


CHECKS: dict[str, Callable[[Any, Path], str]] = {
    "threads": _threads,
    "fork": _fork,
    "spawn": _spawn,
    "global state": _global_state,
    "steps": partial(_steps, steps=STEPS),
    "a few steps": partial(_steps, steps=FEW),
    "limits": _limits,
}
KINDS = {kind: {"spawn": SPAWNED, "a few steps": 0}.get(kind, len(regard.names())) for kind in CHECKS}
"""one case for each name"""
JUDGED: dict[str, int] = {}


def cases(kind: str, folder: Path) -> Callable[[int], Outcome]:
    """The cases of a kind."""
    return partial(_case, kind, folder)
