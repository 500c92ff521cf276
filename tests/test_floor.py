"""Nobody may shed a capability: what a name declares with default options is at least its row of capabilities.csv."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from regard import catalog

ROWS = {row["name"]: row for row in csv.DictReader(Path(__file__).with_name("capabilities.csv").open())}
CAPABILITIES = ("bidirectional", "causal", "cross", "key_mask", "bias", "marks", "prefix", "dropout")
GROWTH = ("none", "length", "window", "constant")
"""of the state, from worst to best"""


def shortfalls(info, row):
    missing = [c for c in CAPABILITIES if row[c] == "1" and not getattr(info.supports, c)]
    if GROWTH.index(info.state) < GROWTH.index(row["state"]):
        missing.append(f"state={info.state}, not {row['state']}")
    if info.time > float(row["time"]):
        missing.append(f"time={info.time}, not {row['time']}")
    return missing


@pytest.mark.parametrize("name", sorted({*ROWS, *catalog.names()}))
def test_floor(name):
    assert name in catalog.names(), f"{name} has vanished from the catalog"
    assert name in ROWS, f"{name} has no row in capabilities.csv"
    assert shortfalls(catalog.describe(name), ROWS[name]) == []
    assert catalog.family(name) == ROWS[name]["family"]


@pytest.mark.parametrize("name", catalog.names())
def test_no_option_set_sheds_leading_keys_or_dropout(name):
    """Whatever the options, except an engine asked for by name, and forms that are not causal or leak: no past."""
    cls, _ = catalog.resolve(name)
    for options in cls.samples:
        info = cls.describe({key: value for key, value in options.items() if key != "impl"})
        has_past = info.supports.causal and not info.leaks
        assert info.supports.prefix or not has_past or ROWS[name]["prefix"] == "0", f"{options} shed leading keys"
        assert info.supports.dropout or ROWS[name]["dropout"] == "0", f"{options} shed dropout"


def test_every_loss_is_noticed():
    info, row = catalog.describe("softmax"), ROWS["softmax"]
    assert shortfalls(info, row) == []
    for capability in CAPABILITIES:
        if row[capability] == "1":
            less = replace(info, supports=replace(info.supports, **{capability: False}))
            assert shortfalls(less, row) == [capability]
    assert shortfalls(replace(info, state="none"), row) == ["state=none, not length"]
    assert shortfalls(replace(info, time=2.5), row) == ["time=2.5, not 2"]
    assert shortfalls(replace(info, state="constant"), row) == []
