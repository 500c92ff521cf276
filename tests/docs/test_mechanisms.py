"""What a page says of a mechanism besides its source: equation, evidence, example, and a line in Chinese."""

import doctest
import json
import re
from pathlib import Path

import costs
import mathml
import measured
import pages
import pytest
import zh
from docutils.utils.math import MathError
from importable import importable

from regard import catalog

CHINESE = re.compile(r"[\u4e00-\u9fff]")


def test_every_name_and_no_other_has_an_entry():
    assert set(pages.TOLD) == set(catalog.names())
    assert all(set(entry) == {"equation", "also", "zh"} for entry in pages.TOLD.values())


@pytest.mark.parametrize("name", catalog.names())
def test_the_equation_is_drawn(name):
    """Every command of it is known to what draws it, and it says what comes out."""
    drawn = mathml.drawn(pages.TOLD[name]["equation"], as_block=True)
    assert drawn.startswith("<math ")
    assert drawn.rstrip().endswith("</math>")
    assert "∑" in drawn or name == "linformer"
    assert "softmax" in drawn or "softmax_j" not in pages.TOLD[name]["equation"]


def test_an_equation_that_cannot_be_drawn_is_refused():
    with pytest.raises(MathError):
        mathml.drawn(r"\nosuchcommand x")


@pytest.mark.parametrize("name", catalog.names())
def test_every_mechanism_has_a_line_in_chinese(name):
    """A sentence, in the table of its family, with a link to its page."""
    line = pages.TOLD[name]["zh"]
    assert len(CHINESE.findall(line)) >= 8
    assert line.endswith("。")
    table = "\n".join(zh.table())
    assert table.count(f"[`{name}`](../generated/mechanisms/{name}.md)") == 1
    assert pages.escaped(line) in table


@pytest.mark.parametrize("name", catalog.names())
def test_the_example_runs_as_it_is_printed(name):
    """In an empty namespace: what it needs is imported in it."""
    cls, _ = catalog.resolve(name)
    _, _, sections = pages.split_docstring(cls)
    printed = importable(sections["Example"], cls)
    test = doctest.DocTestParser().get_doctest(printed, {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False).run(test).failed == 0


def test_costs_are_recorded_of_every_mechanism():
    found = json.loads(costs.RECORDED.read_text(encoding="utf-8"))
    assert set(found["mechanisms"]) == set(catalog.names())
    assert all(len(each["operations"]) == len(costs.LENGTHS) for each in found["mechanisms"].values())


@pytest.mark.parametrize("name", ["softmax", "local", "linear", "linformer", "bigbird", "lsh"])
def test_recorded_costs_are_those_of_today(name):
    """Run `python docs/costs.py` again where this fails."""
    recorded, exact = costs.recorded(name)
    today = costs.cost(name, costs.LENGTHS[:1])
    assert today["state_bytes"] == recorded["state_bytes"]
    assert today["operations"][0] == pytest.approx(recorded["operations"][0], abs=1e-3)
    assert exact["operations"] == [1.0, 1.0]


def test_wins_and_losses_follow_from_the_numbers():
    """Recall: lost where the ranges of the seeds do not touch. Cost: level within a twentieth."""
    (four, eight) = (one for one in measured.recalled("linear") if "`linear`" in one.measure)
    assert (four.verdict, eight.verdict) == ("loses", "loses")
    assert measured.recalled("softmax") == []
    assert [measured.compared(here, 1.0) for here in (0.94, 0.96, 1.04, 1.06)] == ["wins", "level", "level", "loses"]
    assert "| bytes kept after 65,000 tokens | 33,280 | 66,560,000 | wins |" in measured.cost_table("linear")


def test_claims_are_found_by_their_settings():
    assert {one["name"] for one in measured.claimed("graph")} == {"static_graph_attention"}
    assert "hybrid_recall" in {one["name"] for one in measured.claimed("linear")}
    assert measured.claimed("strided") == []
    assert "**does not hold**" in "\n".join(measured.section("distance_aware"))


def test_a_recorded_comparison_is_shown(tmp_path: Path, monkeypatch):
    """The first measure and the speed, beside exact attention in the same comparison."""

    def entry(spec: str, bits: float, speed: float) -> dict:
        return {"spec": spec, "text": {"bits_per_byte": {"middle": bits}, "tokens_per_second": speed}}

    mixed = entry("linear / softmax", 1.0, 1.0)
    results = {
        "task": "lm",
        "config": {"text": {"corpus": "my.txt"}},
        "ties": {"text": {"specs": ["softmax"]}},
        "entries": [
            entry("softmax", 2.0, 100.0),
            entry("local(window=16)", 2.5, 150.0),
            mixed,
        ],
    }
    (tmp_path / "one.json").write_text(json.dumps(results), encoding="utf-8")
    monkeypatch.setattr(measured, "COMPARISONS", tmp_path)
    quality, speed = measured.in_comparisons("local")
    assert (quality.here, quality.exact, quality.verdict) == ("2.500", "2.000", "loses")
    assert (speed.here, speed.exact, speed.verdict) == ("150", "100", "wins")
    assert measured.in_comparisons("linear") == measured.in_comparisons("softmax") == []
