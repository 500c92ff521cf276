"""Time mechanisms over length, paired with exact attention in one run; or --accuracy, --capacity or --retrieval.

Timing: forward, forward + backward, decoding. --accuracy: error, bias and variance against exact softmax over the knob
of every mechanism; without names, of all that approximate softmax. --capacity: how many stored pairs it finds again,
untrained; without names, exact attention and kernels from the sharpest to the flattest. --retrieval: how much a small
model recalls after training on it, against the bytes that it keeps; without names, every causal mechanism.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

import tyro

from regard.cli._output import console, emit, table
from regard.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """What to time, or to measure otherwise."""

    specs: tyro.conf.Positional[tuple[str, ...]] = ()
    """mechanisms, such as softmax 'local(window=256)' linear"""
    lengths: str | None = None
    """first:last, doubling, or a list such as 1000,4096; None: 512:8192, and 256 with --accuracy"""
    heads: int = 8
    """heads; the shape is (1, heads, length, key_dim)"""
    key_dim: int | None = None
    """width of a head; None: 64, and 32 with --capacity and --retrieval"""
    bidirectional: bool = False
    """every position sees every other (default: causal; --accuracy: both for random vectors, else as the network is)"""
    passes: tuple[Literal["forward", "both", "decode"], ...] = ("forward", "both", "decode")
    """forward, both (forward + backward), decode (one token after so many; causal only)"""
    rounds: int = 5
    """timed turns"""
    seconds: float = 60.0
    """for each pass, start no longer length after this; the shortest is always timed"""
    threads: int = 2
    """CPU threads"""
    counted: bool = False
    """count operations and elements too (no clock, any machine gives the same)"""
    accuracy: bool = False
    """measure error, bias and variance against exact softmax instead of time"""
    inputs: tuple[str, ...] = ("random",)
    """--accuracy: random, smollm2, minilm, or published weights as `regard generate` takes them"""
    norms: tuple[float, ...] = (1.0, 2.0, 3.0)
    """--accuracy: of random queries and keys, divided by key_dim^(1/4): logits lie within -norm^2 and norm^2"""
    layers: tuple[int, ...] | None = None
    """--accuracy: of networks, counted from 0; None: the first, the middle and the last"""
    corpus: str = "state_of_the_union"
    """--accuracy: the text that networks read"""
    knob: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """--accuracy: values of an option, such as num_features=16,64,256; may be given again for another option"""
    redraws: int = 16
    """--accuracy: seeds of everything random in a mechanism"""
    capacity: bool = False
    """measure how many stored pairs are found again instead of time"""
    pairs: tuple[int, ...] | None = None
    """--capacity, --retrieval: how many are stored; None: 8 32 128, and 4 with --retrieval"""
    sharpness: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    """--capacity: logits of a key with itself; the best one for each mechanism is shown"""
    trials: int = 32
    """--capacity: independent sets of pairs"""
    retrieval: bool = False
    """train two layers of every mechanism on associative recall instead of timing it"""
    steps: int = 200
    """--retrieval: of a training"""
    rates: tuple[float, ...] = (1e-2,)
    """--retrieval: learning rates; the best one on validation sequences is shown, on others"""
    trainings: int = 1
    """--retrieval: of each mechanism, with seeds that count from --seed"""
    seed: int = 0
    """--accuracy, --capacity, --retrieval: of everything random"""
    out: str | None = None
    """--accuracy, --capacity, --retrieval: folder for results.json, and for accuracy.html or retrieval.html"""
    json: bool = False
    """machine output on stdout"""


_TIME, _ACCURACY, _CAPACITY, _RETRIEVAL = "none of the other measurements", "--accuracy", "--capacity", "--retrieval"
_READERS = {
    **dict.fromkeys(("passes", "rounds", "seconds", "counted"), (_TIME,)),
    **dict.fromkeys(("lengths", "heads", "bidirectional"), (_TIME, _ACCURACY)),
    **dict.fromkeys(("inputs", "norms", "layers", "corpus", "knob", "redraws"), (_ACCURACY,)),
    **dict.fromkeys(("sharpness", "trials"), (_CAPACITY,)),
    "pairs": (_CAPACITY, _RETRIEVAL),
    **dict.fromkeys(("steps", "rates", "trainings"), (_RETRIEVAL,)),
    **dict.fromkeys(("seed", "out"), (_ACCURACY, _CAPACITY, _RETRIEVAL)),
}
"""an option -> with what it is read; all others always are"""
_OF_RANDOM, _OF_NETWORKS = ("heads", "key_dim", "norms"), ("layers", "corpus")
"""what is read with --accuracy only where its inputs are random vectors, and only where they are of a network"""


def run(options: Options) -> int:
    """Time, or measure what an option names."""
    asked = {_ACCURACY: options.accuracy, _CAPACITY: options.capacity, _RETRIEVAL: options.retrieval}
    modes = [mode for mode, wanted in asked.items() if wanted] or [_TIME]
    if len(modes) > 1:
        count = "two" if len(modes) == 2 else "three"
        raise ConfigError(f"{' and '.join(modes)} are {count} measurements; leave one out")
    (mode,) = modes
    given = [one.name for one in fields(Options) if getattr(options, one.name) != one.default]
    problems = [
        f"--{name.replace('_', '-')} is read with {' or '.join(_READERS[name])}; leave it out"
        for name in given
        if name in _READERS and mode not in _READERS[name]
    ]
    if mode == _ACCURACY:
        problems += _unread(options, given)
    problems += [
        f"{name} must be at least 1, got {value}"
        for name in ("threads", "heads", "key_dim")
        if (value := getattr(options, name)) is not None and value < 1
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    if mode == _TIME:
        return _time(options)
    import torch

    from regard.cli import _accuracy, _capacity, _retrieval

    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        if mode == _CAPACITY:
            return _capacity.run(options)
        if mode == _RETRIEVAL:
            return _retrieval.run(options)
        return _accuracy.run(options, parse_lengths("256" if options.lengths is None else options.lengths))
    finally:
        torch.set_num_threads(threads)


def _unread(options: Options, given: Sequence[str]) -> list[str]:
    """What is said of vectors that are not among the inputs."""
    kinds = [
        ("random vectors", _OF_RANDOM, "random" in options.inputs),
        ("a network", _OF_NETWORKS, any(one != "random" for one in options.inputs)),
    ]
    return [
        f"--{name.replace('_', '-')} is of {what}, and --inputs are {' '.join(options.inputs)}; leave it out"
        for what, names, present in kinds
        for name in names
        if name in given and not present
    ]


def _time(options: Options) -> int:
    """Time under fixed allocation, the default figures beside them."""
    from regard.benchmark import sweep

    if not options.specs:
        raise ConfigError("name what to time, such as softmax linear; regard list shows what there is")
    plan = sweep.Plan(
        specs=options.specs,
        lengths=parse_lengths("512:8192" if options.lengths is None else options.lengths),
        heads=options.heads,
        key_dim=64 if options.key_dim is None else options.key_dim,
        causal=not options.bidirectional,
        passes=options.passes,
        rounds=options.rounds,
        seconds=options.seconds,
        threads=options.threads,
    )
    for spec in plan.specs:
        plan.build(spec)
    fixed = sweep.sweep(plan, fixed_allocation=True)
    default = {(r.spec, r.length, r.kind): r for r in sweep.sweep(plan, fixed_allocation=False)}
    counted = sweep.count(plan) if options.counted else {}
    if options.json:
        rows = [
            {**asdict(r), "default_seconds": default[r.spec, r.length, r.kind].seconds}
            for r in fixed
            if (r.spec, r.length, r.kind) in default
        ]
        emit({"plan": asdict(plan), "rows": rows, "counted": [asdict(c) for c in counted.values()] if counted else []})
        return 0
    exact = {(r.length, r.kind): r.seconds for r in fixed if r.spec == sweep.SDPA}
    lines = []
    for row in fixed:
        against = exact.get((row.length, row.kind))
        slow = default.get((row.spec, row.length, row.kind))
        cost = counted.get((row.spec, row.length, row.kind))
        lines.append(
            (
                row.spec,
                row.kind,
                f"{row.length:,}",
                f"{row.seconds * 1e3:.3f}",
                f"{row.low * 1e3:.3f} to {row.high * 1e3:.3f}",
                f"{slow.seconds * 1e3:.3f}" if slow else "",
                f"{against / row.seconds:.2f}" if against else "",
                f"{row.state_bytes:,}" if row.state_bytes is not None else "",
                *((f"{cost.operations:.3g}", f"{cost.elements:.3g}") if cost else ("", "") if options.counted else ()),
            )
        )
    heads = ("mechanism", "pass", "tokens", "ms", "quartiles", "ms, default allocation", "times SDPA", "state bytes")
    screen = console()
    screen.print(table(*heads, *(("operations", "elements") if options.counted else ()), rows=lines))
    screen.print(
        f"(1, {plan.heads}, tokens, {plan.key_dim}), float32, {plan.threads} threads; medians of turns in one process "
        "under fixed allocation; default allocation beside them. Decoding: one token.",
        markup=False,
    )
    return 0


def parse_lengths(text: str) -> tuple[int, ...]:
    """`first:last`, doubling, or a list.

    Raises:
        ConfigError: neither.

    Example:
        >>> parse_lengths("512:2048")
        (512, 1024, 2048)
    """
    try:
        if ":" in text:
            first, last = (int(part) for part in text.split(":"))
            found = tuple(first << at for at in range(64) if first << at <= last)
        else:
            found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"cannot read the lengths {text!r}: write 512:8192 or 1000,4096") from error
    if not found or min(found) < 1:
        raise ConfigError(f"no lengths in {text!r}: write 512:8192 or 1000,4096")
    return found
