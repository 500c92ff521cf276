"""Paired timing and the cost sweep: turns, medians, plans, crossovers."""

import time

import pytest
import torch

from regard.benchmark import sweep
from regard.benchmark.cost import counted
from regard.benchmark.sweep import Row, SweepConfig, count, crossover, measure
from regard.benchmark.timing import paired
from regard.errors import ConfigError, UnsupportedError


def test_candidates_take_turns():
    calls: list[str] = []
    paired({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=2)
    assert calls == ["a", "b"] * 5


def test_medians_and_quartiles(monkeypatch):
    clock = iter([0.0, *(moment for took in (1.0, 9.0, 2.0, 4.0, 3.0) for moment in (0.0, took, 0.0))])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    found = paired({"a": lambda: None}, rounds=5)["a"]
    assert (found.low, found.seconds, found.high) == (2.0, 3.0, 4.0)


def test_the_budget_stops_rounds_but_never_before_the_first():
    calls: list[int] = []
    found = paired({"a": lambda: calls.append(1)}, rounds=50, warmup=1, budget_seconds=-1.0)
    assert len(calls) == 2
    assert found["a"].low == found["a"].high == found["a"].seconds


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


def test_counting_a_sweep():
    config = SweepConfig(
        specs=("linear",), lengths=(64, 128), heads=1, key_dim=8, passes=("forward", "decode"), threads=1
    )
    found = count(config)
    assert {key[2] for key in found} == {"forward"}
    assert found["linear", 128, "forward"].operations <= 2.2 * found["linear", 64, "forward"].operations
