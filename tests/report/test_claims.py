"""The page of claims."""

import json

import pytest

from regard import claims
from regard.report.claims import figures, notes, rows, verdict

PLOT = {"name": "a", "title": "t", "x": "n", "y": "v", "log_x": False, "log_y": False}


def lines(*curves):
    """Low, high and mean line of one label, drawn from these seeds."""
    (figure,) = figures({"name": "one", "plots": [PLOT], "observations": [{"curves": {"a": {"m": c}}} for c in curves]})
    text = figure["json"].replace("\\u003c", "<")
    return {at: (line["x"], line["y"]) for at, line in enumerate(json.loads(text)["data"])}


def test_seeds_may_lack_points():
    drawn = lines(([1, 2, 4], [1.0, 2.0, 3.0]), ([2, 3], [4.0, None]))
    assert drawn[0] == ([1, 2, 3, 4], [1.0, 4.0, None, 3.0])  # highest
    assert drawn[1] == ([1, 2, 3, 4], [1.0, 2.0, None, 3.0])
    assert drawn[2] == ([1, 2, 3, 4], [1.0, 3.0, None, 3.0])


RECORD = {
    "name": "transformer_as_rnn",
    "verdict": "inconclusive",
    "withdrawn": None,
    "revised_after_look": None,
    "timed": False,
    "sources": {"commit": None, "claim": None, "package": None},
    "controls": [],
}
FINDING = {
    "title": "gain", "at_least": 0.1, "at_most": None, "values": [0.3, 0.3], "mean": 0.3, "low": 0.3, "high": 0.3,
    "smallest_effect": 0.0, "states": True, "verdict": "holds",
}  # fmt: skip


def test_a_withdrawn_verdict_is_shown_as_one():
    withdrawn = {"verdict": "holds", "why": "It was not over."}
    record = {**RECORD, "withdrawn": withdrawn, "findings": [FINDING]}
    assert verdict(record) == "inconclusive (withdrawn)"
    assert notes(record)[0] == "Withdrawn: the verdict was 'holds'. It was not over."
    assert rows(record)[0][-1] == "withdrawn"
    assert verdict(RECORD) == "inconclusive"


def test_findings_beside_the_claim_are_marked():
    shown = rows({**RECORD, "findings": [FINDING, {**FINDING, "states": False}]})
    assert [row[0] for row in shown] == ["gain", "beside the claim: gain"]


@pytest.mark.parametrize(("fresh", "says"), [(True, "These seeds had not been seen."), (False, "had been seen.")])
def test_what_was_revised_after_a_look_is_said(fresh, says):
    (first, _) = notes({**RECORD, "revised_after_look": {"what": "A bound.", "seen": [0], "fresh_seeds": fresh}})
    assert first.startswith("Revised after a look: A bound.")
    assert first.endswith(says)


def test_sources_and_stale_times():
    now = {"commit": "a" * 40 + "+", **claims.sources("transformer_as_rnn")}
    assert notes(RECORD) == ["Sources: not recorded."]
    (line,) = notes({**RECORD, "timed": True, "sources": now})
    assert line == f"Sources: commit aaaaaaaaaaaa+, the claim's file {now['claim'][:12]} (SHA-256)."
    older = {**now, "commit": None, "package": "0" * 64}
    stale, line = notes({**RECORD, "timed": True, "sources": older})
    assert stale == "Stale: these times are those of older code."
    assert line.startswith("Sources: outside of a checkout,")
    assert len(notes({**RECORD, "sources": older})) == 1
