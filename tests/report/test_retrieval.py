"""The page of trained recall."""

from regard_lab.report import retrieval as page


def results(*specs: str, missed: bool = False) -> dict:
    """As `measure` gives them, made up."""
    rows = [
        {"spec": spec, "pairs": pairs, "seed": seed, "accuracy": 1 / (at + 1), "state_bytes": (100, 101, None)[at]}
        for at, spec in enumerate(specs)
        for pairs in (4, 8)
        for seed in (0, 1)
    ]  # fmt: skip
    control = {"title": "softmax, 4 pairs: at least 0.95", "values": [0.5], "bound": 0.95, "reached": not missed}
    plan = {"length": 64, "vocab_size": 64, "dim": 32, "steps": 200, "batch_size": 32}
    return {"rows": rows, "controls": [control], "plan": plan, "seconds": 2.0}


def test_rows_are_sorted_by_accuracy_and_show_the_range():
    found = results("softmax", "</script>", "graph")
    assert page.columns(found) == ("mechanism", "state bytes", "4 pairs", "8 pairs")
    rows = page.rows(found)
    assert [row[0] for row in rows] == ["softmax", "</script>", "graph"]
    assert rows[1] == ("</script>", "101", "0.500 (0.500 to 0.500)", "0.500 (0.500 to 0.500)")
    assert rows[2][1] == ""


def test_what_several_commands_measured_is_one_picture():
    one, other = results("softmax", "uniform"), results("softmax", "linear")
    merged = page.merge([one, other])
    assert [row["spec"] for row in merged["rows"]][::4] == ["softmax", "uniform", "linear"]
    few = {**other, "rows": [row for row in other["rows"] if row["pairs"] == 4]}
    assert page.rows(page.merge([one, few]))[-1][2:] == ("0.500 (0.500 to 0.500)", "")
    assert (len(merged["controls"]), merged["seconds"]) == (1, 4.0)


def test_the_page_holds_every_point_and_asks_the_network_for_nothing(monkeypatch):
    monkeypatch.setattr("regard_lab.report._page.plotly.offline.get_plotlyjs", lambda: "")
    found = results("softmax", "</script>", "graph", missed=True)
    html = page.render(found)
    assert html.count("</script>") == 2
    assert "://" not in html
    assert "CONTROL MISSED: softmax, 4 pairs" in html
    drawn = page.chart(found).figure.data
    assert [trace.name for trace in drawn] == ["4 pairs", "8 pairs"]
    assert len(drawn[0].x) == 2  # without a state there is no place on the axis
