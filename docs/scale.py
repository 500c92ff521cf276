"""A cost model of training on many devices: `python docs/scale.py` measures its constants, and the page is computed.

Operations of attention are counted here, and bytes in `recorded/costs.json` (`python docs/costs.py`). The tables of
`scale.md` are written from what was recorded.
"""

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import costs
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from regard import Heads, catalog
from regard_lab.benchmark.cost import counted
from regard_lab.training.environment import versions

RECORDED = Path(__file__).parent / "recorded" / "scale.json"
DEVICES = (8, 64, 512, 4096)
LENGTH = 1 << 20
"""tokens of the one sequence that the devices share"""
WIDTH, LAYERS, HEADS, VOCABULARY = 2048, 24, 32, 50_000
"""of the decoder; heads have the width that costs were counted at, 64"""
SHORT = 8192
"""tokens of a sequence in data parallel training"""
BLOCK = 12 * WIDTH * WIDTH
"""weights of a block: four projections of width x width, and a feed-forward part of four widths"""
PARAMETERS = LAYERS * BLOCK + VOCABULARY * WIDTH
COUNTED = (2048, 4096, 8192)
"""tokens at which operations of a forward pass are counted"""
TURNS = 7


@dataclass(frozen=True)
class Machine:
    """What a device computes and sends.

    rate: operations in a second. bandwidth: bytes in a second over a link, in one direction. latency: seconds of a
    message. number: bytes of a number that is sent. measured: here; otherwise assumed.
    """

    name: str
    rate: float
    bandwidth: float
    latency: float
    number: int
    measured: bool


ACCELERATOR = Machine("accelerator", 4e14, 5e10, 1e-5, 2, False)
"""assumed: 40 % of 989e12 dense bfloat16 operations (the data sheet of an H100 SXM), a link of 400 Gbit/s, 10 us"""


def machines() -> tuple[Machine, Machine]:
    """The one that was measured, and the assumed one."""
    found = recorded()
    core = Machine("core", found["operations_per_second"], found["bytes_per_second"], found["latency_seconds"], 4, True)
    return core, ACCELERATOR


@dataclass(frozen=True)
class Attention:
    """What was counted of a mechanism, for `HEADS` heads.

    start, linear, quadratic: forward operations once, for each token, for their number squared. backward: operations of
    both passes over those of the forward pass. exchange: what devices that share a sequence send each other. kept:
    bytes in float32 of that: for each token of a ring, of the window of a halo, of a state.
    """

    name: str
    family: str
    start: float
    linear: float
    quadratic: float
    backward: float
    exchange: str
    kept: float

    def operations(self, length: int) -> float:
        """Of both passes of one layer over a sequence."""
        return self.backward * (self.start + self.linear * length + self.quadratic * length**2)


def attentions() -> list[Attention]:
    """Every mechanism with what was counted of it, family by family."""
    found = []
    for name, (forward, backward) in recorded()["operations"].items():
        cls, _ = catalog.resolve(name)
        info, family, more = cls.describe(costs.options(cls)), cls.__module__.split(".")[-2], HEADS / costs.HEADS
        operations = (more * each for each in fitted(forward, time=info.time))
        exchange, kept = exchanged(info.state, family, costs.recorded(name)[0]["state_bytes"])
        found.append(Attention(name, family, *operations, backward, exchange, more * kept))
    return sorted(found, key=lambda each: (each.family, each.name))


def fitted(counts: Sequence[float], *, time: float) -> tuple[float, float, float]:
    """Operations once, for each token and for their number squared, which give those counted at `COUNTED` tokens.

    Where they grow with the length (`info.time` is 1), each further token costs what those between the last two did:
    at the first of them windows have no past yet, and whatever were left over would grow with the square.

    Example:
        >>> fitted([3.0 + length + 2 * length**2 for length in COUNTED], time=2)
        (3.0, 1.0, 2.0)
    """
    (one, two, three), (least, middle, most) = COUNTED, counts
    early, late = (middle - least) / (two - one), (most - middle) / (three - two)
    quadratic = max(0.0, (late - early) / (three - one)) if time > 1 else 0.0
    linear = late - quadratic * (two + three)
    return most - linear * three - quadratic * three**2, linear, quadratic


def exchanged(state: str, family: str, nbytes: list[int] | None) -> tuple[str, float]:
    """What devices exchange, and its bytes, by what a decoder keeps of the past. Of kernels it is sums, at any length.

    Without a state it is a ring of keys and values, which is an upper bound: some need less of them.
    """
    few, many = costs.KEPT
    if nbytes is not None and (state == "constant" or (state == "window" and family == "kernel")):
        return "state", nbytes[1]
    if state == "window" and nbytes is not None:
        return "halo", nbytes[1]
    if nbytes is None:
        return "ring", 2 * 4 * costs.HEADS * costs.DIM
    return "ring", (nbytes[1] - nbytes[0]) / (many - few)


@dataclass(frozen=True)
class Shared:
    """One layer of a sequence that devices share.

    operations: of a device, both passes. nbytes: over a link. messages: one after the other. seconds: of computing, and
    of sending.
    """

    operations: float
    nbytes: float
    messages: int
    computing: float
    sending: float

    @property
    def ratio(self) -> float:
        """Above 1, communication takes longer than computation."""
        return self.sending / self.computing


def shared(attention: Attention, devices: int, machine: Machine, length: int = LENGTH, *, tree: bool = False) -> Shared:
    """The cost of sequence parallel training of one layer, both passes.

    ring: P - 1 hops of the keys and values of length/P tokens; in the backward pass of these and of their gradients.
    halo: the window before a device's tokens, from as many neighbours as it reaches over; its gradients backward.
    state: one state forward and its gradient backward, handed from device to device: P - 1 waits of each; as a
    tree, ceil(log2 P), in each of which a link may carry one.
    """
    kept = attention.kept * machine.number / 4
    if attention.exchange == "ring":
        nbytes, messages = 3 * (devices - 1) * length / devices * kept, 2 * (devices - 1)
        seconds = messages * machine.latency + nbytes / machine.bandwidth
    elif attention.exchange == "halo":
        token = kept / window(attention)
        hops = max(1, min(devices - 1, -(-window(attention) * devices // length)))
        nbytes, messages = 2 * token * min(window(attention), length), 2 * hops
        seconds = messages * machine.latency + nbytes / machine.bandwidth
    else:
        waits = (devices - 1).bit_length() if tree else devices - 1
        nbytes, messages = 2 * kept * (waits if tree else 1), 2 * waits
        seconds = messages * (machine.latency + kept / machine.bandwidth)
    operations = (attention.operations(length) + 6 * BLOCK * length) / devices
    return Shared(operations, nbytes, messages, operations / machine.rate, seconds)


def window(attention: Attention) -> int:
    """Slots of a window whose bytes are known: those of its keys and values."""
    return max(1, round(attention.kept / (2 * 4 * HEADS * costs.DIM)))


def overtaken(attention: Attention, machine: Machine, *, tree: bool = False) -> int | None:
    """The fewest devices, a power of two up to the largest, at which sending takes longer than computing."""
    counts = (1 << power for power in range(3, DEVICES[-1].bit_length()))
    return next((count for count in counts if shared(attention, count, machine, tree=tree).ratio > 1), None)


def reduced(devices: int, machine: Machine) -> tuple[float, float]:
    """Bytes over a link, and seconds, of adding up all gradients around a ring, in float32: 2 (P - 1) / P of them."""
    nbytes = 2 * (devices - 1) / devices * PARAMETERS * 4
    return nbytes, nbytes / machine.bandwidth + 2 * (devices - 1) * machine.latency


def least_tokens(attention: Attention, devices: int, machine: Machine) -> float:
    """Tokens of a device in a step from which on computing takes longer than adding up gradients."""
    token = 6 * PARAMETERS + LAYERS * attention.operations(SHORT) / SHORT
    return reduced(devices, machine)[1] * machine.rate / token


def recorded() -> dict[str, Any]:
    """What was measured."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def write(folder: Path) -> None:
    """Write what `scale.md` includes."""
    for name, make in TABLES.items():
        (folder / f"scale_{name}.inc").write_text("\n".join([*make(), ""]), encoding="utf-8")


def constants() -> Iterator[str]:
    """What every number below is computed from."""
    found = recorded()
    yield "| | core, measured | accelerator, assumed |"
    yield "|---|---|---|"
    core, other = machines()
    rows: tuple[tuple[str, Callable[[Machine], str]], ...] = (
        ("operations in a second", lambda one: f"{one.rate:.3g}"),
        ("bytes in a second over a link", lambda one: f"{one.bandwidth:.3g}"),
        ("seconds of a message", lambda one: f"{one.latency:.3g}"),
        ("bytes of a number that is sent", lambda one: f"{one.number}"),
    )
    for what, shown in rows:
        yield f"| {what} | {shown(core)} | {shown(other)} |"
    yield ""
    yield (
        f"Measured on {found['date']} with torch {found['versions']['torch']}, {found['cpus']} cores, load "
        f"{found['load']:.1f}: medians of {TURNS} turns; the slowest had {found['slowest_operations']:.3g} operations "
        f"and {found['slowest_bytes']:.3g} bytes in a second."
    )


def data_parallel() -> Iterator[str]:
    """Tokens that a device must have in a step, by family."""
    yield "| family | " + " | ".join(f"{machine.name}, {count:,}" for machine in machines() for count in DEVICES) + " |"
    yield "|---" * (1 + 2 * len(DEVICES)) + "|"
    for family, members in families().items():
        cells = []
        for machine in machines():
            for count in DEVICES:
                found = [least_tokens(each, count, machine) for each in members]
                cells.append(_range(min(found), max(found)))
        yield f"| {family} | " + " | ".join(cells) + " |"


def links() -> Iterator[str]:
    """Bytes over a link in a step of data parallel training."""
    yield "| devices | bytes over a link | seconds, core | seconds, accelerator |"
    yield "|---|---|---|---|"
    for count in DEVICES:
        seconds = [reduced(count, machine)[1] for machine in machines()]
        yield f"| {count:,} | {reduced(count, ACCELERATOR)[0]:.3g} | {seconds[0]:.3g} | {seconds[1]:.3g} |"


def sequences() -> Iterator[str]:
    """A row for every mechanism."""
    heads = [f"bytes over a link, {count:,}" for count in (DEVICES[0], DEVICES[-1])]
    heads += [f"{machine.name}, {count:,}" for machine in machines() for count in DEVICES]
    yield "| family | mechanism | exchange | operations of a token | " + " | ".join(heads) + " |"
    yield "|---" * (4 + len(heads)) + "|"
    for one in attentions():
        cells = [f"{shared(one, count, machines()[0]).nbytes:.3g}" for count in (DEVICES[0], DEVICES[-1])]
        cells += [f"{shared(one, count, machine).ratio:.2g}" for machine in machines() for count in DEVICES]
        token = f"{one.operations(LENGTH) / LENGTH:.3g}"
        yield f"| {one.family} | `{one.name}` | {one.exchange} | {token} | " + " | ".join(cells) + " |"


def overtaking() -> Iterator[str]:
    """From how many devices on communication takes longer, by family and exchange."""
    yield "| family | exchange | mechanisms | core | accelerator |"
    yield "|---|---|---|---|---|"
    for family, members in families().items():
        for exchange, tree in (("state", False), ("state", True), ("halo", False), ("ring", False)):
            of_kind = [each for each in members if each.exchange == exchange]
            if of_kind:
                cells = [_from([overtaken(each, machine, tree=tree) for each in of_kind]) for machine in machines()]
                shown = f"{exchange}, as a tree" if tree else exchange
                yield f"| {family} | {shown} | {len(of_kind)} | {cells[0]} | {cells[1]} |"


TABLES = {
    "constants": constants,
    "links": links,
    "data_parallel": data_parallel,
    "sequences": sequences,
    "overtaking": overtaking,
}


def families() -> dict[str, list[Attention]]:
    """Mechanisms by family."""
    found: dict[str, list[Attention]] = {}
    for each in attentions():
        found.setdefault(each.family, []).append(each)
    return found


def _range(least: float, most: float) -> str:
    one, two = f"{least:,.0f}", f"{most:,.0f}"
    return one if one == two else f"{one} to {two}"


def _from(counts: list[int | None]) -> str:
    never = f"never up to {DEVICES[-1]:,}"
    known = sorted(count for count in counts if count is not None)
    if not known:
        return never
    shown = f"from {known[0]:,}" if known[0] == known[-1] else f"from {known[0]:,} to {known[-1]:,}"
    return shown if len(known) == len(counts) else f"{shown}, or {never}"


def operations(name: str) -> tuple[list[int], float]:
    """Of a forward pass at `COUNTED` tokens; and of both passes over those of the forward pass, at 1,024."""
    cls, _ = catalog.resolve(name)
    given = costs.options(cls)
    causal = cls.describe(given).supports.causal
    forward = [costs.spent(cls, given, length, causal=causal)[1] for length in COUNTED]
    length = costs.LENGTHS[0]
    mechanism = cls(Heads(count=costs.HEADS, key_dim=costs.DIM, causal=causal, max_length=length), **given).eval()
    q, k, v = torch.randn(3, 1, costs.HEADS, length, costs.DIM, generator=torch.Generator().manual_seed(0))
    inputs = {}
    for key, each in mechanism.info.inputs.items():
        count, width = each.shape(mechanism.heads)
        inputs[key] = torch.zeros(1, count, length, width).clamp(each.low, each.high).requires_grad_()

    def call(*, learn: bool) -> None:
        given = [each.clone().requires_grad_(learn) for each in (q, k, v)]
        keys = given[0] if mechanism.info.shares_query_key else given[1]
        out = mechanism(given[0], keys, given[2], inputs=inputs).values
        if learn:
            out.sum().backward()

    once = counted(lambda: call(learn=False)).operations
    return forward, round(counted(lambda: call(learn=True)).operations / once, 3) if once else 3.0


def operations_per_second() -> list[float]:
    """Of products of two matrices of 1,024 x 1,024 numbers in float32 on one thread, turn by turn."""
    torch.set_num_threads(1)
    a = torch.randn(1024, 1024)
    found = []
    for _ in range(TURNS + 1):
        begun = time.process_time()
        for _ in range(8):
            a @ a
        found.append(8 * 2 * 1024**3 / (time.process_time() - begun))
    return found[1:]


def _talk(rank: int, port: int, sizes: tuple[int, int], out: str) -> None:
    """Send a message to the other process and back again, turn by turn."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for size in sizes:
        data, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(TURNS + 1):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(4):
                (dist.send if rank == 0 else dist.recv)(data, 1 - rank)
                (dist.recv if rank == 0 else dist.send)(data, 1 - rank)
            times.append((time.perf_counter() - begun) / 8)
        found[size] = times[1:]
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


def messages(large: int = 1 << 24) -> tuple[list[float], list[float]]:
    """Seconds of a message of a byte, and of `large` bytes, between two processes of this machine by gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = RECORDED.with_name(".messages.json")
    try:
        mp.spawn(_talk, (port, (1, large), str(out)), nprocs=2)
        found = json.loads(out.read_text())
    finally:
        out.unlink(missing_ok=True)
    return found["1"], found[str(large)]


def write_record() -> None:
    """Measure and count everything that the page is computed from."""
    rates, large = operations_per_second(), 1 << 24
    small, long = messages(large)
    latency = statistics.median(small)
    widths = [large / max(each - latency, 1e-9) for each in long]
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": versions(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "operations_per_second": statistics.median(rates),
        "slowest_operations": min(rates),
        "bytes_per_second": statistics.median(widths),
        "slowest_bytes": min(widths),
        "latency_seconds": latency,
    }
    counts = {name: operations(name) for name in catalog.names()}
    parts = (f'"{key}": {json.dumps(each)}' for key, each in found.items())
    text = ",\n".join([*parts, f'"operations": {{\n{costs.lines(counts)}\n}}'])
    RECORDED.write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    write_record()
