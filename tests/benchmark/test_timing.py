"""Paired timing and the cost sweep: turns, medians, plans, crossovers."""

import math
from dataclasses import dataclass

import pytest
import torch

from regard.core.errors import ConfigError, UnsupportedError
from regard_lab.benchmark import quiet, sweep
from regard_lab.benchmark.cost import counted
from regard_lab.benchmark.quiet import MOST_SLOWER, Sample, Watch, doubt
from regard_lab.benchmark.sweep import Row, SweepConfig, crossover, measure
from regard_lab.benchmark.timing import Timing, interval, paired


@dataclass
class Machine:
    """A stand-in: calls take seconds, and other processes take the rest. Every `watch` is of a run of its own."""

    now: float = 0.0
    had: float = 0.0
    share: float = 1.0
    speed: float = 1.0

    def runs(self, seconds: float) -> None:
        self.had += seconds / self.speed
        self.now += seconds / self.speed / self.share

    def lap(self) -> float:
        began = self.now
        self.runs(0.001)
        return self.now - began

    def watch(self) -> Watch:
        quiet._best.pop(-1, None)
        return Watch(lambda: self.now, lambda: self.had, self.lap, threads=-1)


def timed(machine: Machine, took, moods=(), **settings) -> Timing:
    """A call takes these seconds, one after another; moods: what the machine is at the n-th call, and stays."""
    calls, states = iter(took), iter(moods)

    def call() -> None:
        machine.share, machine.speed = next(states, (machine.share, machine.speed))
        machine.runs(next(calls))

    watch = machine.watch()
    watch.slower()  # the best of this run is known
    return paired({"a": call}, warmup=0, watch=watch, **settings)["a"]


def test_candidates_take_turns():
    calls: list[str] = []
    watch = Machine().watch()
    paired({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=2, watch=watch)
    assert calls == ["a", "b"] * 5


def test_medians_and_their_intervals():
    found = timed(Machine(), (1.0, 9.0, 2.0, 4.0, 3.0))
    assert (found.low, found.seconds, found.high) == tuple(map(pytest.approx, (1.0, 3.0, 9.0)))
    assert (found.turns, found.untrusted) == (5, None)
    found = timed(Machine(), (3.0,), rounds=1)
    assert (found.low, found.high) == (pytest.approx(3.0 / MOST_SLOWER), pytest.approx(3.0 * MOST_SLOWER))


def test_intervals_hold_the_median_as_often_as_they_say():
    draw = torch.Generator().manual_seed(0)
    for n, least in ((5, 0.92), (11, 0.95), (21, 0.95)):
        rows = torch.rand(4000, n, generator=draw).tolist()
        held = sum(low <= 0.5 <= high for low, high in map(interval, rows)) / len(rows)
        assert least <= held < 0.995


@pytest.mark.parametrize("n", range(3, 60))
def test_intervals_are_as_narrow_as_coins_allow(n):
    """As many may lie outside, on each side, as heads that fall with a probability of 2.5 % at most."""
    low, high = interval([float(at) for at in range(n)])
    assert low + high == n - 1
    heads = [math.comb(n, count) / 2**n for count in range(n + 1)]
    outside = int(low)
    assert sum(heads[: outside + 1]) <= 0.025 or outside == 0
    assert sum(heads[: outside + 2]) > 0.025


def test_turns_in_which_the_machine_was_busy_are_repeated():
    busy, quiet_again = (0.2, 1.0), (1.0, 1.0)
    found = timed(Machine(), [1.0] * 6, [quiet_again, busy, busy, quiet_again], rounds=3)
    # The first turn ends beside a calibration that is good, and so does the last busy one: its own share tells.
    assert (found.seconds, found.high, found.turns) == (pytest.approx(1.0), pytest.approx(1.0), 3)
    assert found.untrusted is None


def test_a_machine_that_stays_busy_makes_no_figure():
    """7 ms became 35 ms, all quartiles alike: the thread had a processor for a fifth of its time."""
    found = timed(Machine(), [0.007] * 10, [(0.2, 1.0)], rounds=5)
    assert found.seconds == pytest.approx(0.035)
    assert found.turns == 10
    assert found.untrusted == "the machine was busy: the timed thread had a processor for 20% of its time"


def test_what_the_clock_of_the_processor_cannot_see_the_calibration_does():
    """Another virtual machine on the same cores: the thread always runs, at half its speed."""
    found = timed(Machine(), [0.007] * 10, [(1.0, 0.5)], rounds=5)
    assert found.seconds == pytest.approx(0.014)
    assert found.untrusted == (
        "the machine was busy: a fixed piece of work beside it took 2.0 times as long as at its best"
    )


def test_a_little_slower_is_in_the_interval():
    found = timed(Machine(), [1.0] * 5, [(1.0, 1 / 1.2)], rounds=5)
    assert found.untrusted is None
    assert (found.low, found.seconds) == (pytest.approx(1.0), pytest.approx(1.2))


@pytest.mark.parametrize("now", [0.0, 1000.0])
def test_repeats_end_with_the_time_for_them(now):
    found = timed(Machine(now), [1.0] * 10, [(0.5, 1.0)], rounds=5, budget_seconds=3.0)
    assert found.turns == 2
    assert found.untrusted


def test_half_of_the_turns_have_to_be_quiet():
    good, bad = Sample(1.0, 0.99, 1.01), Sample(5.0, 0.4, 1.01)
    assert doubt([good, good, good, *[bad] * 12], 5) is None
    assert doubt([good, good, *[bad] * 13], 5) == (
        "the machine was busy: the timed thread had a processor for 40% of its time"
    )
    assert doubt([good, bad], 5) is None  # time was up
    assert doubt([bad], 5)


def test_the_best_lap_is_that_of_the_whole_run():
    """A process that starts while the machine is slow does not take that for its best."""
    machine = Machine()
    watch = machine.watch()
    assert watch.slower() == 1.0
    known = quiet.best()
    watch, machine.speed = machine.watch(), 0.5
    assert watch.slower() == 1.0
    quiet.seen({str(threads): seconds for threads, seconds in known.items()})
    assert watch.slower() == pytest.approx(2.0)


def test_the_calibration_of_this_machine_is_work():
    watch = Watch()
    assert watch.slower() >= 1.0
    assert 1e-5 < quiet.best()[torch.get_num_threads()] < 1.0


def test_the_budget_stops_rounds_but_never_before_the_first():
    calls: list[int] = []
    found = paired({"a": lambda: calls.append(1)}, rounds=50, warmup=1, budget_seconds=-1.0)
    assert len(calls) == 2
    assert found["a"].low < found["a"].seconds < found["a"].high


def test_every_pass_of_every_mechanism_is_measured():
    config = SweepConfig(
        specs=("softmax", "linear", "linformer"), lengths=(32, 48), heads=2, key_dim=8, rounds=1, threads=1
    )
    with pytest.raises(UnsupportedError, match="linformer does not support causal=True"):
        config.build("linformer")
    rows = measure(SweepConfig(specs=("softmax", "linear"), lengths=(48, 32), heads=2, key_dim=8, rounds=2, threads=1))
    expected = {(s, n, k) for s in ("softmax", "linear") for n in (32, 48) for k in ("forward", "both", "decode")}
    expected |= {(sweep.SDPA, n, k) for n in (32, 48) for k in ("forward", "both")}
    assert {(row.spec, row.length, row.kind) for row in rows} == expected
    assert all(0 < row.low <= row.seconds <= row.high < 60 for row in rows)
    states = {(row.spec, row.length): row.state_bytes for row in rows if row.kind == "decode"}
    assert states["softmax", 48] == 2 * 2 * 48 * 8 * 4
    assert states["linear", 48] == states["linear", 32]
    assert all(row.state_bytes is None for row in rows if row.kind != "decode")


def test_mechanisms_with_a_longest_sequence_have_room_to_decode():
    rows = measure(SweepConfig(specs=("dense_synthesizer",), lengths=(32,), heads=1, key_dim=8, rounds=5, threads=1))
    assert {row.kind for row in rows} == {"forward", "both", "decode"}


def test_bidirectional_has_no_decoding():
    config = SweepConfig(specs=("linformer",), lengths=(32,), heads=1, key_dim=8, causal=False, rounds=1, threads=1)
    assert {(row.spec, row.kind) for row in measure(config)} == {
        (spec, kind) for spec in ("linformer", sweep.SDPA) for kind in ("forward", "both")
    }


def test_time_that_is_up_starts_no_longer_length():
    config = SweepConfig(
        specs=("softmax",), lengths=(32, 64, 128), heads=1, key_dim=8, rounds=1, seconds=0.0, threads=1
    )
    assert {row.length for row in measure(config)} == {32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specs": ()}, "specs must not be empty"),
        ({"passes": ("fast",)}, "no pass 'fast': valid: both, decode, forward"),
        ({"lengths": (0,)}, "lengths must be at least 1, got 0"),
        ({"heads": 0, "threads": -1}, "heads must be at least 1, got 0\nthreads must be at least 1, got -1"),
        ({"seconds": float("nan")}, "seconds must be at least 0, got nan"),
    ],
)
def test_plans_that_make_no_sense(change, message):
    with pytest.raises(ConfigError) as caught:
        SweepConfig(**{"specs": ("softmax",), "lengths": (32,), **change})
    assert str(caught.value) == message


def rows_of(kind="both", **seconds):
    return [
        Row(spec, 100 * 2**at, kind, value, value, value)
        for spec, values in seconds.items()
        for at, value in enumerate(values)
        if value is not None
    ]


@pytest.mark.parametrize(
    ("mine", "exact", "expected"),
    [
        ((3, 2, 1), (1, 2.5, 9), 200),
        ((1, 1, 1), (2, 2, 2), 100),
        ((1, 5, 1), (2, 2, 2), 400),
        ((1, 1, 5), (2, 2, 2), None),
        ((2, 2, 2), (2, 2, 2), None),
        ((1, 1, None), (2, 2, 2), 100),
        ((3, 1, 1), (2, 2, None), 200),
    ],
)
def test_the_crossover_is_where_it_stays_faster(mine, exact, expected):
    rows = rows_of(mine=mine, exact=exact)
    assert crossover(rows, "mine", "exact") == expected
    assert crossover(rows, "mine", "exact", "forward") is None
    assert crossover([], "mine", "exact") is None


def test_counts_are_those_of_the_definition():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    found = counted(lambda: a @ b)
    assert (found.operations, found.elements, found.largest) == (2 * 5 * 7 * 3, 15, 15)
    found = counted(lambda: (a @ b).T.reshape(-1).view(3, 5))  # one copy, and views
    assert (found.elements, found.largest) == (30, 15)
    q, k, v = torch.randn(3, 1, 2, 64, 8)
    fused = counted(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert fused.operations == 2 * 2 * 64 * 64 * (8 + 8)


def test_a_sweep_gives_a_mechanism_its_declared_inputs():
    rows = measure(SweepConfig(("forgetting",), (16,), heads=2, key_dim=4, rounds=1, threads=1))
    timed = {row.kind: row.state_bytes for row in rows if row.spec == "forgetting"}
    assert timed == {"forward": None, "both": None, "decode": 4 * 2 * 16 * (4 + 4 + 1)}  # keys, values, gates
