"""The page of claims."""

import json

from regard.report.claims import figures

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
