"""The page of claims."""

import json
from html.parser import HTMLParser

import pytest

from evidence import claims
from evidence.claims._page import figures, notes, render, rows, verdict

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
    "name": "rank_of_attention",
    "verdict": "inconclusive",
    "withdrawn": None,
    "revised_after_look": None,
    "timed": False,
    "sources": {"commit": None, "claim": None, "package": None},
    "controls": [],
}


class Places(HTMLParser):
    """The places of charts, and the script that draws them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.places: list[str] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "script"
        if ("class", "chart") in attrs:
            self.places.append(dict(attrs)["id"])

    def handle_data(self, data):
        if self._inside:
            self.scripts.append(data)

    @property
    def drawn(self) -> list[str]:
        """Where the script draws: the keys of its `figures`, read as the browser does."""
        (script,) = (text for text in self.scripts if "const figures" in text)
        entries = script.partition("const figures = {\n")[2].partition("\n};")[0].splitlines()
        keys = [json.JSONDecoder().raw_decode(entry)[0] for entry in entries if entry]
        assert all(json.loads(entry.partition(": ")[2].rstrip(",")) for entry in entries if entry)
        return keys


NAMES = ["R&D", "a<b", '"quoted"', "it's", "</script><script>alert(1)</script>", "<b>bold</b>", "\\", "é 注"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["claim", "plot"])
def test_a_name_with_markup_stops_no_chart(name, where):
    plot = {**PLOT, "name": name if where == "plot" else "a"}
    result = {
        **dict.fromkeys(("title", "says", "source", "control", "measures", "verdict", "reason", "version"), "text"),
        **{"created": "2026", "seconds": 1.0, "tiny": False, "settings": {}, "environment": {}, "seeds": [0]},
        **{"withdrawn": None, "revised_after_look": None, "timed": False, "sources": RECORD["sources"]},
        **{"controls": [], "findings": [], "name": name if where == "claim" else "one", "plots": [plot]},
        "observations": [{"curves": {plot["name"]: {name: [[1, 2], [0.5, 1.0]]}}}],
    }
    page = Places(render([result]))
    assert page.drawn == page.places == [f"chart-{result['name']}-{plot['name']}".replace(" ", "-")]
    assert sum("alert" in text and "figures" not in text for text in page.scripts if len(text) < 1000) == 0


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
    now = {"commit": "a" * 40 + "+", **claims.sources("rank_of_attention")}
    assert notes(RECORD) == ["Sources: not recorded."]
    (line,) = notes({**RECORD, "timed": True, "sources": now})
    assert line == f"Sources: commit aaaaaaaaaaaa+, the claim's file {now['claim'][:12]} (SHA-256)."
    older = {**now, "commit": None, "package": "0" * 64}
    stale, line = notes({**RECORD, "timed": True, "sources": older})
    assert stale == "Stale: these times are those of older code."
    assert line.startswith("Sources: outside of a checkout,")
    assert len(notes({**RECORD, "sources": older})) == 1
