"""The page as text: a table under every chart, every number in it, nothing from outside, nothing executed from data."""

import json
import re
from html.parser import HTMLParser

import pytest

from regard.cli.main import main
from regard.files.checksums import sealed
from regard_lab.benchmark.language import sentence
from regard_lab.report import attention_map, html
from regard_lab.report.charts import charts
from regard_lab.report.summary import needs, table, tie_note
from tests.conftest import at_file
from tests.report.test_png import read


class Page(HTMLParser):
    """Sections with their charts and tables; every address that an element loads from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[dict] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self._cell = False
        self._plain = True
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.addresses += [str(named[key]) for key in ("src", "href", "action", "srcset", "data") if key in named]
        if tag == "section":
            self.sections.append({"charts": [], "tables": [], "order": []})
        inside = self.sections[-1] if self.sections else None
        if inside is not None and tag == "div" and named.get("class") == "chart":
            inside["charts"].append(named["id"])
            inside["order"].append("chart")
        if inside is not None and tag == "table":
            inside["tables"].append([])
            inside["order"].append("table")
        if inside is not None and tag == "tr" and inside["tables"]:
            inside["tables"][-1].append([])
        self._cell = tag in ("td", "th")
        self._plain = tag not in ("script", "style")

    def handle_endtag(self, tag):
        self._cell, self._plain = False, True

    def handle_data(self, data):
        if self._plain:
            self.text.append(data)
        if self._cell and self.sections and self.sections[-1]["tables"]:
            self.sections[-1]["tables"][-1][-1].append(data)


@pytest.fixture(scope="module")
def page(compared) -> Page:
    return Page(compared.page)


def test_every_chart_has_its_table_under_it(page, compared):
    drawn = [section for section in page.sections if section["charts"]]
    assert len(drawn) == 9
    for section, chart in zip(drawn, charts(compared.results), strict=True):
        assert section["charts"] == [f"chart-{chart.name}"]
        assert section["order"] == ["chart", "table"]
        head, *rows = section["tables"][0]
        assert tuple(head) == chart.columns
        assert rows == [[cell for cell in row if cell] for row in chart.rows]
        assert len(rows) > (chart.name != "differences-recall")  # of two, one differs


def test_every_point_of_a_chart_is_in_its_table(compared):
    """Each x and y that is drawn can be read, to the digits shown."""
    for chart in charts(compared.results):
        parts = {part for row in chart.rows for cell in row for part in re.split(r" to |, ", cell.removesuffix(" ?"))}
        cells = {part.replace(",", "").rstrip("%") for part in parts}
        numbers = sorted(float(cell) for cell in cells if re.fullmatch(r"[-+]?[\d.]+", cell))
        shares, scale = "recall" in chart.name, 1e6 if chart.name == "decode-microseconds" else 1
        rows = chart.name in ("differences", "differences-recall", "recall")  # their lines have names, and no numbers
        for trace in chart.figure.data:
            for value in [*trace.x, *(() if rows else (scale * y for y in trace.y))]:
                scaled = 100 * value if shares else value
                nearest = min(numbers, key=lambda number, scaled=scaled: abs(number - scaled))
                assert nearest == pytest.approx(scaled, rel=0.02, abs=0.06 if shares else 6e-5), (chart.name, value)


def test_one_colour_for_every_specification(compared):
    """The same in every chart, and never that of another or of a baseline."""
    colours = {"softmax": set(), "linear / softmax": set(), "3-gram (baseline)": set(), "xz (baseline)": set()}
    for chart in charts(compared.results):
        for trace in chart.figure.data:
            assert trace.name in colours, chart.name
            colours[trace.name].add((trace.line.color or trace.marker.color) or chart.name)
    first, second, *baselines = colours.values()
    assert len(first) == len(second) == 1
    assert not first & second
    assert not (first | second) & set().union(*baselines)


def test_the_legend_names_what_is_drawn(compared):
    for chart in charts(compared.results):
        drawn = {trace.meta for trace in chart.figure.data if trace.meta}
        assert {key.name for key in chart.keys} == drawn
        assert chart.figure.layout.showlegend is False
        named = {annotation.text for annotation in chart.figure.layout.annotations}
        assert bool(named) != bool(drawn), chart.name


def test_ticks_are_at_the_measured_lengths(compared):
    for chart in charts(compared.results):
        if chart.name.startswith(("cost", "decode")):
            assert list(chart.figure.layout.xaxis.tickvals) == [64, 128, 192]
            assert list(chart.figure.layout.xaxis.ticktext) == ["64", "128", "192"]


def test_nothing_is_loaded_from_outside(page, compared):
    assert page.addresses
    assert all(address.startswith("data:") for address in page.addresses)
    assert "@import" not in compared.page.partition("<script>")[0]
    assert "default-src 'none'" in compared.page


def test_the_page_says_what_to_use_and_how_to_repeat_it(page, compared):
    text = " ".join(" ".join(page.text).split())
    advice = compared.results["recommendation"]
    assert f"No recommendation yet. {advice['reason']}" in text
    for need in needs(compared.results):
        assert f"{need.title} {need.advised} {need.why}" in text
    assert compared.results["reproduce"] in text
    assert tie_note(compared.results) in text
    assert compared.results["environment"]["torch"] in text
    columns, rows = table(compared.results)
    assert all(cell in text for row in (columns, *rows) for cell in row)


def test_a_recommended_specification_is_named_first(changed):
    def edit(results):
        results["recommendation"].update(spec="softmax", status="winner", specs=["softmax"])

    assert "<strong>Use softmax.</strong>" in html.render(changed(edit))


def test_words_from_the_data_are_never_executed(changed):
    hostile = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>"

    def edit(results):
        for one in (results["entries"][0], results["differences"]["text"]["rows"][0], results["recommendation"]):
            one["spec"] = hostile
        results["recommendation"]["status"] = "winner"
        results["differences"]["text"]["rows"][0]["baseline"] = True
        results["differences"]["text"]["best"] = results["advice"][0]["sentences"][0]["values"]["spec"] = hostile
        results["config"]["text"]["corpus"] = results["reproduce"] = results["baselines"][0]["name"] = hostile

    shown = html.render(changed(edit))
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert shown.count("<script>") == 2
    assert "&lt;script&gt;alert(1)" in shown


def test_tied_and_untied_cells(changed):
    def edit(results):
        results["ties"] = {"text": {"best": "softmax", "specs": ["softmax"]}, "recall": {"best": "", "specs": []}}

    _, rows = table(changed(edit))
    assert rows[0][1].endswith(" =")
    assert not rows[1][1].endswith("=")
    assert not rows[0][2].endswith("=")


@pytest.mark.parametrize(
    ("seeds", "note"), [(1, "One seed: trainings differ"), (2, "2 seeds: trainings differ"), (3, "")]
)
def test_few_seeds_are_admitted(changed, seeds, note):
    found = tie_note(changed(lambda results: results["config"].update(seeds=seeds)))
    assert (note in found) if note else found.endswith("bootstrap over documents).")
    found = tie_note(changed(lambda results: results.update(unit="window")))
    assert "bootstrap over windows)" in found


def believed(results):
    """As on a quiet machine, which the one that runs these tests is not."""
    for entry in results["entries"]:
        for row in (*entry["cost"], *entry["decode"]):
            row["untrusted"] = None


def test_figures_that_cannot_be_trusted_are_marked(changed):
    def edit(results):
        believed(results)
        entry = results["entries"][1]
        entry["text"]["speed"]["untrusted"] = entry["cost"][0]["untrusted"] = "the machine was busy: so it was"
        entry["decode"][-1]["untrusted"] = "the machine was busy: so it was"
        results["notes"] = [sentence("2 timings cannot be trusted")]

    found = changed(edit)
    columns, rows = table(found)
    for head in ("train tok/s", "us/token at 192"):
        assert rows[1][columns.index(head)].endswith(" ?")
    drawn = {chart.name: chart for chart in charts(found)}
    assert drawn["quality"].figure.data[1].marker.symbol == "square-open"
    assert drawn["cost-forward"].figure.data[1].marker.symbol == ("square-open", "square", "square")
    assert drawn["decode-microseconds"].figure.data[1].marker.symbol == ("square", "square", "square-open")
    assert "2 timings cannot be trusted." in html.render(found)


def test_spread_is_shown_in_charts_and_tables(changed, compared):
    drawn = {chart.name: chart for chart in charts(compared.results)}
    entry = compared.results["entries"][0]
    speed = entry["text"]["tokens_per_second"] - entry["text"]["speed"]["low"]
    assert drawn["quality"].figure.data[0].error_x.arrayminus == (pytest.approx(speed),)
    row = next(row for row in entry["cost"] if row["kind"] == "both")
    assert drawn["cost-both"].figure.data[0].error_y.array[0] == pytest.approx(row["high"] - row["seconds"])
    assert "interval" in drawn["decode-microseconds"].columns


def test_results_of_a_version_that_judged_no_machine_are_shown(changed):
    def edit(results):
        del results["notes"]
        for entry in results["entries"]:
            del entry["text"]["speed"]
            for row in (*entry["cost"], *entry["decode"]):
                del row["untrusted"]
            for row in entry["decode"]:
                del row["low"], row["high"]
        for row in results["baselines"]:
            del row["speed"]

    found = changed(edit)
    assert "?" not in "".join(cell for row in table(found)[1] for cell in row)
    assert html.render(found).count("<section>") == html.render(changed(lambda results: None)).count("<section>")


def test_a_mechanism_without_state_or_crossover(changed):
    def edit(results):
        entry = results["entries"][1]
        entry.update(decode=[])
        entry["crossover"] = {"forward": None, "both": None}
        believed(results)

    found = changed(edit)
    row = table(found)[1][1]
    assert row[5:8] == ("no state", "no state", "not by 192")
    assert table(found)[1][0][7] == "reference"


def test_a_crossover_is_shown(changed):
    def edit(results):
        results["entries"][1]["crossover"].update(both=128)
        believed(results)

    found = changed(edit)
    assert table(found)[1][1][7] == "128"
    rows = next(chart.rows for chart in charts(found) if chart.name == "cost-both")
    assert {row[-1] for row in rows} == {"", "from 128"}


def test_the_report_is_written_again(compared, tmp_path, capsys):
    assert main(["report", str(compared.folder), "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == compared.page
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "results.json").write_text(json.dumps(sealed(compared.results)))
    assert main(["report", str(copy)]) == 0
    assert (copy / "report.html").read_text(encoding="utf-8") == compared.page
    assert capsys.readouterr().out.endswith(f"{copy / 'report.html'}\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"", "holds no results of a comparison"),
        (b"\xff\xfe\0", "holds no results of a comparison"),
        (b"[]", "holds no results of a comparison: it holds list, not an object"),
        (b'{"format": 3}', "it has no checksum"),
        (b'{"format": 3, "sha256": 0}', "its checksum differs from its content; give the regard compare command"),
        (lambda changed: {"format": 0}, "holds no results of a comparison that this version of regard reads"),
    ],
)
def test_what_is_no_result(tmp_path, capsys, changed, content, message):
    path = tmp_path / "results.json"
    if callable(content):
        path.write_text(json.dumps(sealed(content(changed))))
    elif content is not None:
        path.write_bytes(content)
    assert main(["report", str(tmp_path)]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"regard report: {'cannot read ' if content is None else ''}{path}")
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not (tmp_path / "report.html").exists()


def test_a_report_that_cannot_be_written_leaves_the_old_one(compared, tmp_path, capsys, monkeypatch):
    old = tmp_path / "report.html"
    old.write_text("old")
    (tmp_path / "file").write_text("")
    assert main(["report", str(compared.folder), "--out", str(tmp_path / "file" / "r.html")]) == 6
    assert "cannot write" in capsys.readouterr().err

    def full(size):
        raise OSError(28, "No space left on device")

    at_file(monkeypatch, full)
    assert main(["report", str(compared.folder), "--out", str(old)]) == 6
    assert "No space left on device" in capsys.readouterr().err
    assert old.read_text() == "old"


def test_pictures_show_the_matrix():
    picture = read(attention_map.png([[0.5, 0.125], [-1.0, 0.0]], scale=3)).tolist()
    found = [[tuple(pixel) for pixel in row] for row in picture]
    assert (len(found), len(found[0])) == (6, 6)
    assert all(found[y][x] == found[y - y % 3][x - x % 3] for y in range(6) for x in range(6))
    (largest, quarter), (negative, zero) = ([row[0], row[3]] for row in (found[0], found[3]))
    assert zero == (255, 255, 255)
    assert largest[0] == largest[1] == 0
    assert 120 <= quarter[0] <= 135  # the square root of a quarter
    assert negative == (255, 0, 0)
