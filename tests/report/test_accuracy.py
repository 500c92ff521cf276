"""The page of `regard accuracy`: every number, charts, nothing from outside."""

import html
import json
import math
import re

import pytest

from regard_lab.report import accuracy


def test_rows_show_roots_and_errors(microscope):
    table = {row[0] + row[2]: row for row in accuracy.rows(microscope, 0)}
    found = next(row for row in microscope["rows"] if row["case"] == 0 and row["value"] == 64)
    shown = table["performernum_features=64"]
    assert len(shown) == len(accuracy.COLUMNS)
    assert shown[1] == "softmax"
    root, error = shown[4].split(" ± ")
    assert float(root) == pytest.approx(found["output"]["error"] ** 0.5, rel=5e-3)
    wanted = found["output"]["error_se"] / 2 / found["output"]["error"] ** 0.5
    assert float(error) == pytest.approx(wanted, rel=0.5)
    assert float(shown[7]) == pytest.approx(found["matrix"]["error"] ** 0.5, rel=5e-3)
    assert table["linear"][1] == "another kernel"
    assert table["linear"][4] == table["linear"][5]
    assert table["linear(post='softmax')"][7:] == ("", "", "")
    assert float(shown[9]) == pytest.approx(found["effective_keys"], abs=0.06)
    assert table["softmax"][4:7] == ("0", "0", "0")


def test_a_bias_that_was_not_seen_is_a_bound(microscope):
    one = {"error": 1.0, "error_se": 0.1, "bias": 0.0, "bias_se": 0.1, "variance": 1.0, "variance_se": 0.1}
    row = {**microscope["rows"][0], "output": {**one, "smallest_bias": 0.04, "biased": False}}
    assert accuracy.rows({**microscope, "rows": [row]}, 0)[0][4:7] == ("1 ± 0.05", "< 0.2", "1 ± 0.05")
    seen = {**row, "output": {**one, "bias": 0.25, "smallest_bias": 0.04, "biased": True}}
    assert accuracy.rows({**microscope, "rows": [seen]}, 0)[0][5] == "0.5 ± 0.1"
    endless = {**row, "output": {**one, "error": None, "smallest_bias": 0.04, "biased": False}}
    assert accuracy.rows({**microscope, "rows": [endless]}, 0)[0][4] == "not finite"


def test_notes_name_what_was_skipped_and_missed(microscope):
    (line,) = accuracy.notes(microscope)
    assert line.startswith("not measured on random, norm 1; random, norm 2: linformer does not support causal=True")
    missed = {**microscope["controls"][0], "reached": False}
    assert "CONTROL MISSED" in accuracy.notes({**microscope, "controls": [missed]})[-1]


def test_the_page_holds_every_number_and_nothing_from_outside(microscope):
    page = html.unescape(accuracy.render(microscope))
    tables = re.findall(r'<table class="data">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert len(tables) == len(microscope["cases"])
    for at, body in enumerate(tables):
        shown = [tuple(re.findall(r"<td>(.*?)</td>", line)) for line in body.strip().splitlines()]
        assert shown == accuracy.rows(microscope, at)
    assert sum(body.count("<tr>") for body in tables) == len(microscope["rows"])
    assert all(
        address.startswith("data:") for address in re.findall(r'(?:src|href)="([^"]*)"', page.split("<script>")[0])
    )
    assert page.count("<script>") == 2
    assert all(accuracy.headline(case) in page for case in microscope["cases"])


def test_charts_have_a_line_for_every_mechanism_and_case(microscope):
    drawn = [one for one in accuracy.charts(microscope) if one.figure is not None]
    assert [one.title.split(" of")[0] for one in drawn] == ["Error", "Bias"] * 2
    lines = {line.name: line for line in drawn[0].figure.data}
    assert set(lines) == {key.name for key in drawn[0].keys}
    specs = ("performer", "linear", "linear(post='softmax')", "softmax", "equal weights")
    assert set(lines) == {f"{spec}, norm {norm}" for spec in specs for norm in (1, 2)}
    equal = microscope["cases"][1]["equal_output_error"]
    assert all(math.isclose(y, equal) for y in lines["equal weights, norm 2"]["y"])
    wanted = [row["output"]["error"] ** 0.5 for row in microscope["rows"] if row["case"] == 1 and row["value"]]
    got = [float(y) for y in lines["performer, norm 2"]["y"]]
    assert all(math.isclose(a, b) for a, b in zip(got, wanted, strict=True))


def test_markup_in_a_name_stays_text(microscope):
    evil = json.loads(json.dumps(microscope).replace("random", "<script>alert(1)</script>"))
    assert "<script>alert" not in accuracy.render(evil)
