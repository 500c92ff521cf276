"""The table of states in fewer bits has a row for every causal mechanism with a state."""

import rounding

from regard.benchmark.rounding import RoundingConfig


def test_every_causal_mechanism_is_recorded():
    """Run `python docs/rounding.py` again where this fails."""
    found = rounding.recorded()
    named = {row["spec"] for row in found["rows"]} | set(found["skipped"])
    assert named == set(RoundingConfig().chosen)
    assert all(any(f"`{name}`" in line for line in rounding.lines()) for name in named - set(found["skipped"]))
