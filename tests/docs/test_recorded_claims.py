"""The records that the documentation shows: of the claims of today, judged by their rule, or withdrawn."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from evidence import claims
from evidence.claims._verdict import conclude
from regard_lab.benchmark.plain import plain

RECORDED = Path(__file__).parents[2] / "docs" / "recorded" / "claims"


def test_every_claim_is_recorded():
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == claims.names()


@pytest.mark.parametrize("name", claims.names())
def test_a_record_is_of_the_bounds_and_settings_of_today_or_withdrawn(name):
    found, claim = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")), claims.build(name)
    assert (found["format"], found["tiny"], found["timed"]) == (claims.FORMAT, False, claim.timed)
    assert bool(found["revised_after_look"]) == (claim.revised is not None)
    if found["withdrawn"]:
        assert found["verdict"] == "inconclusive"
        assert all(found["withdrawn"].values())
        return
    assert found["settings"] == plain(dataclasses.asdict(claim))  # pyright: ignore[reportArgumentType]
    values = [{key: math.nan if x is None else x for key, x in one["values"].items()} for one in found["observations"]]
    judged = conclude(claim.controls, claim.findings, values, least_seeds=claim.least_seeds)
    assert found["verdict"] == judged.verdict
    assert found["reason"] == judged.reason
    for kind in ("controls", "findings"):
        facts = [(one["title"], one.get("at_least"), one.get("at_most"), one.get("verdict")) for one in found[kind]]
        today = [vars(one) for one in getattr(judged, kind)]
        assert facts == [(one["title"], one.get("at_least"), one.get("at_most"), one.get("verdict")) for one in today]
    if claim.revised is not None:
        fresh = not set(found["seeds"]) & set(claim.revised.seen)
        told = {"what": claim.revised.what, "seen": list(claim.revised.seen), "fresh_seeds": fresh}
        assert found["revised_after_look"] == told
