"""The table of states in fewer bits has a row for every causal mechanism with a state, and its numbers are measured."""

from datetime import date

import pytest
import rounding

from regard_lab.benchmark.rounding import RoundingConfig, measure


def test_every_causal_mechanism_is_recorded():
    """Run `python docs/rounding.py` again where this fails."""
    found = rounding.recorded()
    named = {row["spec"] for row in found["rows"]} | set(found["skipped"])
    assert named == set(RoundingConfig().chosen)
    assert all(any(f"`{name}`" in line for line in rounding.lines()) for name in named - set(found["skipped"]))


@pytest.mark.parametrize(
    ("spec", "roundings", "near"), [("softmax", ("float16", "int8"), 0.01), ("linear", ("bfloat16",), 0.05)]
)
def test_what_is_recorded_is_what_is_measured(spec, roundings, near):
    """Slots to the digits that are kept; a sum goes its own way by where a processor rounds."""
    found = rounding.recorded()
    config = RoundingConfig(**{**found["config"], "specs": (spec,), "roundings": roundings})
    kept = {(row["spec"], row["rounding"]): row for row in found["rows"]}
    for row in measure(config)["rows"]:
        wanted = kept[spec, row["rounding"]]
        assert row["piece"] == wanted["piece"]
        assert row["errors"] == pytest.approx(wanted["errors"], rel=near)


def test_the_record_says_when_and_with_what():
    found = rounding.recorded()
    assert date.fromisoformat(found["date"]) >= date(2026, 11, 23)
    assert found["version"]
    assert {"python", "versions", "machine", "device", "revision"} <= set(found["environment"])
    assert not found["environment"]["revision"].endswith("+"), "measured on files that no commit has"
