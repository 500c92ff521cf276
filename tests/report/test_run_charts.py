"""Charts of what runs decide: every number in its place, on its axis, and in the table below."""

from typing import Any

import pytest

from regard_lab.report.run import render
from regard_lab.report.run_charts import calibrated, charts, points, quality, spans, taken

LOSSES = ("bits_per_byte", "nats_per_token")


def point(number: int, taken: list[int], **what: object) -> dict[str, Any]:
    """Made up: no two numbers of all points are alike."""
    return {
        "threshold": None,
        "blocks": None,
        "taken": taken,
        "depth": 1 + 0.1 * number,
        "operations": 1e6 * (3 - 0.01 * number),
        "bits_per_byte": 5 - 0.3 * number,
        "nats_per_token": 50 - 0.7 * number,
        "accuracy": 0.01 * number,
        **what,
    }


def run(name: str = "early", **what: object) -> dict[str, Any]:
    return {
        "name": name,
        "unit": "blocks",
        "used": point(5, [3, 0, 1], threshold=0.25),
        "exits": [point(at, [4 - at, at, 0], threshold=one) for at, one in enumerate((0.9, 0.5, 0.1))],
        "fixed": [point(5 + blocks, [0] * 3, blocks=blocks) for blocks in (1, 2, 3)],
        "spans": [],
        "calibration": None,
        **what,
    }


def plain(name: str, number: int) -> dict[str, Any]:
    return {**run(name), "used": point(number, []), "exits": [], "fixed": []}


def span(layer: int, head: int, z: float) -> dict[str, Any]:
    of_layer = {"max_span": 90, "ramp": 32, "kept": 64 + layer, "mechanism": "adaptive_span"}
    return {"layer": layer, "head": head, "span": z, "low": z - 1, "high": z + 1, **of_layer}


def results() -> dict[str, Any]:
    """A whole report, made up, of names that would end a script."""
    curve = [
        {"threshold": one, "loss": loss, "p_value": p, "layers": layers, "right": 0.5, "nats": 1.0, "exits": exits}
        for one, loss, p, layers, exits in ((0.9, 0.01, 0.01, 2.5, [1, 0, 3]), (0.5, 0.2, 0.02, 1.5, [3, 0, 1]))
    ]
    found = {"threshold": 0.9, "risk": 0.1, "certified": [0.9], "confidence": 0.95}
    calibration = {"curve": curve, "calibrated": found, "loss": "disagreement", "layers": 3, "guarantee": "A < b."}
    about = {"step": 7, "parameters": 1234, "depth": "early_exit", "heads": "trained", "most": 3, "tokens": 99}
    spans = [span(layer, head, 3.0 * layer + head) for layer in range(2) for head in range(3)]
    early = run("</script>", calibration=calibration, spans=spans)
    return {"limit": 4, "tokens": 99, "runs": [early | about, plain("small", 9) | about]}


def trace(chart: Any, name: str) -> Any:
    (found,) = (one for one in chart.figure.data if one.meta == name)
    return found


@pytest.mark.parametrize("metric", LOSSES)
@pytest.mark.parametrize("field", ["depth", "operations"])
def test_quality_is_up_and_cost_is_across(field, metric):
    runs, scale = [run(), plain("small", 9)], 1e-6 if field == "operations" else 1
    if metric == "nats_per_token":
        runs[0]["used"]["bits_per_byte"] = None
    chart = quality(runs, field)
    for name, some in (
        ("early: exits", runs[0]["exits"]),
        ("early: fixed blocks", runs[0]["fixed"]),
        ("early: as used", [runs[0]["used"]]),
        ("small: as used", [runs[1]["used"]]),
    ):
        drawn = trace(chart, name)
        assert list(drawn.x) == [one[field] * scale for one in some]
        assert list(drawn.y) == [one[metric] for one in some]
        assert name in [one.name for one in chart.keys]
    assert ("blocks" in chart.figure.layout.xaxis.title.text) == (field == "depth")
    assert ("operations" in chart.figure.layout.xaxis.title.text) == (field == "operations")
    assert metric.replace("_", " ") in chart.figure.layout.yaxis.title.text
    everything = [(one, at) for one in runs for at in points(one)]
    assert len(chart.rows) == len(everything) == 8
    for shown, (one, at) in zip(chart.rows, everything, strict=True):
        numbers = (f"{at['depth']:.2f}", f"{at['operations']:,.0f}", f"{at[metric]:.4f}", f"{at['accuracy']:.1%}")
        assert (shown[0], shown[2:6]) == (one["name"], numbers)
    assert [shown[1] for shown in chart.rows] == [
        "as used, threshold 0.25", "threshold 0.9", "threshold 0.5", "threshold 0.1", "1 blocks for every token",
        "2 blocks for every token", "3 blocks for every token", "as used",
    ]  # fmt: skip


def test_the_pareto_line_has_what_nothing_beats():
    """The deeper, the less is lost, and the less it costs: by depth all are on the line, by operations the last."""
    runs = [run(), plain("small", 9)]
    for field, count in (("depth", 8), ("operations", 1)):
        chart = quality(runs, field)
        line = trace(chart, "nothing here is better (Pareto)")
        kept = [row for row in chart.rows if row[-1] == "yes"]
        assert len(kept) == len(line.x) == count
        assert list(line.x) == sorted(line.x)
        assert list(line.y) == sorted(line.y, reverse=True)
    assert (line.x[0], line.y[0]) == pytest.approx((2.91, 5 - 2.7))


def test_runs_are_told_apart_by_colours_and_deciding_ones_by_marks():
    first, second = run(), plain("small", 9)
    chart = quality([first, second], "depth")
    assert (chart.title, quality([first], "operations").title) == (
        "Quality against mean depth",
        "Quality against counted operations",
    )
    marks = {key.name: (key.symbol, key.colour) for key in chart.keys}
    assert [marks[f"early: {what}"][0] for what in ("exits", "fixed blocks", "as used")] == ["●", "□", "★"]
    assert [trace(chart, f"early: {what}").marker.symbol for what in ("exits", "fixed blocks", "as used")] == [
        "circle", "square-open", "star",
    ]  # fmt: skip
    own = trace(chart, "small: as used").marker
    assert (own.symbol, marks["small: as used"]) == ("diamond", ("◆", own.color))
    assert len({marks[f"early: {what}"][1] for what in ("exits", "fixed blocks", "as used")} | {own.color}) == 2
    assert [one.name for one in charts([first, run("late")])][2:] == ["taken-0", "taken-1"]


def test_a_threshold_that_was_tried_is_named_by_it_where_it_is_in_use_too():
    early = run()
    early["exits"] = [dict(early["used"])]
    assert [row[1] for row in quality([early], "depth").rows][:2] == ["as used, threshold 0.25", "threshold 0.25"]


def test_of_many_thresholds_the_ends_and_the_middle_are_drawn():
    tried = [point(at, [4 - at, at, 0], threshold=one) for at, one in enumerate((0.9, 0.5, 0.25, 0.1, 0.05))]
    for used, drawn in ((0.3, ("0.9", "0.25", "0.05")), (0.25, ("0.9", "0.05"))):
        chart = taken(run(used=point(5, [3, 0, 1], threshold=used), exits=tried), 1)
        names = [f"as used, threshold {used}", *(f"threshold {one}" for one in drawn)]
        assert [one.name for one in chart.figure.data] == [key.name for key in chart.keys] == names
        assert len({one.marker.color for one in chart.figure.data}) == len(names)
        assert [row[0] for row in chart.rows] == [names[0], *(f"threshold {one['threshold']}" for one in tried)]
    assert chart.figure.layout.yaxis.tickformat == ".0%"
    assert chart.caption == (
        "4 tokens of the validation part: how many blocks each took before it left. Numbers: tokens by blocks."
    )
    ponder = taken(run(unit="steps", exits=[], used=point(0, [1] * 30)), 0)
    assert "how many steps each took until it halted. Numbers: tokens by steps." in ponder.caption
    assert ponder.figure.layout.xaxis.dtick == 2, "30 numbers have no room"


def test_exits_are_shares_of_the_tokens_that_took_so_many():
    chart = taken(run(), 0)
    drawn = trace(chart, "as used, threshold 0.25")
    assert (list(drawn.x), list(drawn.y)) == ([1, 2, 3], [0.75, 0.0, 0.25])
    assert list(trace(chart, "threshold 0.1").y) == [0.5, 0.5, 0.0]
    assert chart.columns == ("what", "mean blocks", "1", "2", "3")
    assert [row[2:] for row in chart.rows] == [("3", "0", "1"), ("4", "0", "0"), ("3", "1", "0"), ("2", "2", "0")]
    assert chart.title == "Exits of early"
    ponder = taken(run(unit="steps", exits=[]), 0)
    assert ponder.title == "Ponder steps of early"
    assert "steps that a token took" in ponder.figure.layout.xaxis.title.text


def test_what_was_certified_is_said_of_every_threshold():
    chart = calibrated(results()["runs"][0], 0)
    heads = ("threshold", "mean loss", "p-value", "mean blocks", "right", "certified")
    assert chart.columns == (*heads, "left after 1", "left after 2", "left after 3")
    assert chart.rows == [
        ("0.9", "0.0100", "0.01", "2.50", "50.0%", "yes", "1", "0", "3"),
        ("0.5", "0.2000", "0.02", "1.50", "50.0%", "", "3", "0", "1"),
    ]
    assert list(trace(chart, "certified").text) == ["threshold 0.9, p-value 0.01"]
    assert list(trace(chart, "not certified").text) == ["threshold 0.5, p-value 0.02"]
    assert [(one.name, one.symbol) for one in chart.keys] == [("certified", "●"), ("not certified", "○")]


def test_layers_are_down_and_heads_are_across():
    """Of two layers and three heads, the first head of the second layer has none."""
    places = {(0, 0): 1.0, (0, 1): 20.0, (0, 2): 3.0, (2, 1): 40.0, (2, 2): 50.0}
    chart = spans(run(spans=[span(*place, z) for place, z in places.items()]), 0)
    (drawn,) = chart.figure.data
    assert [list(row) for row in drawn.z] == [[1.0, 20.0, 3.0], [None, 40.0, 50.0]]
    assert (list(drawn.x), list(drawn.y)) == ([0, 1, 2], [0, 1])
    assert (drawn.zmin, drawn.zmax, drawn.colorbar.title.text) == (0, 50, "tokens")
    assert drawn.hovertemplate == "layer %{y}, head %{x}: %{z:.1f} tokens<extra></extra>"
    assert chart.figure.layout.xaxis.title.text == "head"
    assert chart.figure.layout.yaxis.title.text == "layer"
    assert list(chart.figure.layout.yaxis.ticktext) == ["0", "2"]
    assert chart.figure.layout.yaxis.autorange == "reversed"
    for row, ((layer, head), z) in zip(chart.rows, places.items(), strict=True):
        shown = (str(layer), str(head), "adaptive_span", f"{z:.2f}", f"{z - 1:.2f} to {z + 1:.2f}")
        assert row == (*shown, "90", "32", str(64 + layer))


def test_what_there_is_nothing_of_is_left_out():
    assert [chart.name for chart in charts([plain("small", 1)])] == []
    both = [run(spans=[span(0, 0, 1.0)]), plain("small", 9)]
    assert [chart.name for chart in charts(both)] == ["quality-depth", "quality-operations", "taken-0", "spans-0"]


def test_the_page_is_sound_whatever_a_run_is_called(monkeypatch):
    monkeypatch.setattr("regard_lab.report._page.plotly.offline.get_plotlyjs", lambda: "")
    page = render(results())
    assert page.count("</script>") == 2
    assert "://" not in page
    assert "A &lt; b." in page
    assert page.count('class="chart"') == 5
