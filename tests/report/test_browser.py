"""The report in a real browser: no console message, no network request, charts drawn, tables and pictures readable."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard_lab.report import accuracy, run
from regard_lab.report.charts import charts
from tests.report import test_run_charts as runs

REQUIRED = os.environ.get("REGARD_REQUIRE_CHROMIUM") == "1"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync --disable-extensions --disable-default-apps "
FLAGS += "--enable-logging=stderr --window-size=1280,2000 --virtual-time-budget=8000 --dump-dom"
LOCAL = ("file:", "data:", "blob:", "about:")


@dataclass(frozen=True)
class Visit:
    """dom: after the scripts. console: lines of the page's console. requests: addresses that are not in the page."""

    dom: str
    console: list[str]
    requests: list[str]


def visit(page: Path, scratch: Path) -> Visit:
    """Open a page in a headless Chromium that cannot resolve any name."""
    chromium = shutil.which("chromium")
    if chromium is None:
        if REQUIRED:
            pytest.fail("chromium is not on PATH, and REGARD_REQUIRE_CHROMIUM=1 demands it")
        pytest.skip("chromium is not on PATH; .ci/run installs it and requires this test")
    log = scratch / "net.json"
    done = subprocess.run(
        [
            chromium,
            *FLAGS.split(),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={scratch / 'profile'}",
            f"--log-net-log={log}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "</html>" in done.stdout, done.stderr
    console = [line.partition("CONSOLE")[2] for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(done.stdout, console, requests(log.read_text(encoding="utf-8")))


def requests(log: str) -> list[str]:
    """What the page asked for. What the browser itself asks for (updates, the time) has no page as its initiator."""
    try:
        found = json.loads(log)
    except json.JSONDecodeError:  # a browser that ends abruptly leaves the list open
        found = json.loads(log.rstrip().rstrip(",") + "]}")
    started = found["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event["params"] for event in found["events"] if event["type"] == started and "params" in event]
    return [
        one["url"]
        for one in asked
        if "url" in one and one.get("initiator") != "not an origin" and not one["url"].startswith(LOCAL)
    ]


class Charts(HTMLParser):
    """Counts what is drawn inside every chart."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.drawn: dict[str, int] = {}
        self.traces: dict[str, int] = {}
        self._inside: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        classes = (named.get("class") or "").split()
        if tag == "div":
            begins = "chart" in classes
            self._inside.append(str(named["id"]) if begins else self._inside[-1] if self._inside else "")
            if begins:
                self.drawn[str(named["id"])] = self.traces[str(named["id"])] = 0
        chart = self._inside[-1] if self._inside else ""
        if chart and tag == "svg" and "main-svg" in classes:
            self.drawn[chart] += 1
        if chart and tag == "g" and "trace" in classes:
            self.traces[chart] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._inside:
            self._inside.pop()


PROBE = """<script>
window.addEventListener("load", () => {
  const tall = (selector) => Array.from(document.querySelectorAll(selector), (x) => x.getBoundingClientRect().height);
  for (const details of document.querySelectorAll("details")) details.open = true;
  document.body.dataset.probe = JSON.stringify({
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    summary: Array.from(document.querySelectorAll("#summary td"), (x) => x.innerText),
    clipped: Array.from(document.querySelectorAll("#summary th, #summary td"), (x) => x.scrollWidth - x.clientWidth),
    tables: tall("table.data"), charts: tall("div.chart"),
    colours: Array.from(document.querySelectorAll("td"), (x) => getComputedStyle(x).color),
    scrolled: Array.from(document.querySelectorAll(".scroll"), (x) => x.scrollWidth - x.clientWidth),
    cells: Array.from(document.querySelectorAll(".heatmap-label text"), (x) => getComputedStyle(x).fill),
    images: Array.from(document.images, (x) => [x.complete, x.naturalWidth, x.naturalHeight, x.alt]),
  });
});
</script></body>"""


@pytest.fixture(scope="module")
def opened(compared, tmp_path_factory) -> tuple[Visit, dict]:
    """The report, with a script at its end that measures what is on the screen."""
    scratch = tmp_path_factory.mktemp("browser")
    page = scratch / "report.html"
    page.write_text(compared.page.replace("</body>", PROBE), encoding="utf-8")
    found = visit(page, scratch)
    probe = re.search(r'data-probe="([^"]*)"', found.dom)
    assert probe is not None
    return found, json.loads(probe[1].replace("&quot;", '"').replace("&amp;", "&"))


def test_nothing_on_the_console_and_no_request(opened):
    found, _ = opened
    assert found.console == []
    assert found.requests == []


def test_every_chart_is_drawn(opened, compared):
    found, probe = opened
    charts = Charts(found.dom)
    assert len(charts.drawn) == 10
    assert all(count > 0 for count in charts.drawn.values()), charts.drawn
    specs = len(compared.results["entries"])
    assert all(count >= specs - name.startswith("chart-loss-d") for name, count in charts.traces.items()), charts.traces
    assert all(130 < height < 600 for height in probe["charts"])


def test_tables_and_pictures_are_readable(opened, compared):
    _, probe = opened
    assert probe["overflow"] <= 0
    assert max(probe["clipped"]) <= 0
    assert {"softmax", "linear / softmax", "3-gram (baseline)", "xz (baseline)"} <= set(probe["summary"])
    assert len(probe["tables"]) == 11
    assert all(height > 30 for height in probe["tables"])
    assert set(probe["colours"]) == {"rgb(28, 36, 48)", "rgb(91, 102, 117)"}
    pictures = sum(len(entry["pictures"]) for entry in compared.results["entries"])
    assert len(probe["images"]) == pictures == 4
    assert all(complete and width == height == 4 * 32 for complete, width, height, _ in probe["images"])


@pytest.mark.parametrize("task", ["mlm", "classify", "recall"])
def test_the_page_of_every_task_opens(of_task, task, tmp_path):
    done = of_task(task)
    page = tmp_path / "report.html"
    page.write_text(done.page, encoding="utf-8")
    found = visit(page, tmp_path)
    assert (found.console, found.requests) == ([], [])
    drawn = Charts(found.dom).drawn
    assert list(drawn) == [f"chart-{chart.name}" for chart in charts(done.results)]
    assert all(count > 0 for count in drawn.values()), drawn


def test_nothing_can_be_sent_away(opened):
    """Plotly's own tool bar offers to upload a chart."""
    found, _ = opened
    titles = set(re.findall(r'data-title="([^"]*)"', found.dom))
    assert titles
    assert not {title for title in titles if re.search("share|cloud|edit|send", title, re.IGNORECASE)}


PAGE = '<!doctype html><html><head><link rel="icon" href="data:,"></head><body>{}</body></html>'


def test_the_visit_sees_errors_and_requests(tmp_path):
    """Each of these pages has exactly one fault, and the last none."""
    faults = {
        "error": "<script>nowhere();</script>",
        "logged": "<script>console.error('wrong')</script>",
        "request": '<img src="http://127.0.0.1:47123/a.png">',
        "fetch": "<script>fetch('http://localhost:47123/b').catch(() => 0)</script>",
        "none": "<svg class='main-svg'></svg><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>",
    }
    found = {}
    for name, body in faults.items():
        (tmp_path / name).mkdir()
        page = tmp_path / name / "page.html"
        page.write_text(PAGE.format(body), encoding="utf-8")
        found[name] = visit(page, tmp_path / name)
    assert "nowhere is not defined" in found["error"].console[0]
    assert "wrong" in found["logged"].console[0]
    assert found["request"].requests == ["http://127.0.0.1:47123/a.png"]
    assert found["fetch"].requests[:1] == ["http://localhost:47123/b"]
    assert (found["none"].console, found["none"].requests) == ([], [])
    assert (found["error"].requests, found["logged"].requests) == ([], [])


def test_the_chart_counter_tells_empty_from_drawn():
    dom = '<div class="chart" id="a"><div><svg class="main-svg"></svg></div></div><div class="chart js" id="b"></div>'
    found = Charts(dom + '<svg class="main-svg"></svg>')
    assert found.drawn == {"a": 1, "b": 0}


def test_a_missing_browser_is_a_failure_where_it_is_required(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for required, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setitem(globals(), "REQUIRED", required)
        with pytest.raises(outcome, match="chromium is not on PATH"):
            visit(tmp_path / "page.html", tmp_path)


def test_approximations_are_drawn(microscope, tmp_path):
    accuracy.write(microscope, tmp_path / "accuracy.html")
    found = visit(tmp_path / "accuracy.html", tmp_path)
    assert found.console == []
    assert found.requests == []
    shown = Charts(found.dom)
    assert len(shown.drawn) == len(accuracy.figures(microscope))
    assert all(shown.drawn.values())
    assert all(shown.traces.values())


def test_what_runs_decide_is_drawn(tmp_path, monkeypatch):
    page, results = tmp_path / "run.html", runs.results()
    results["runs"][0]["depth"] = "early_exit(" + ", ".join(f"option={number}" for number in range(9)) + ")"
    monkeypatch.setitem(globals(), "FLAGS", f"{FLAGS} --blink-settings=preferredColorScheme=0")
    run.write(results, page)
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    found = visit(page, tmp_path)
    assert (found.console, found.requests) == ([], [])
    shown = Charts(found.dom)
    names = ("quality-depth", "quality-operations", "taken-0", "calibrated-0", "spans-0")
    assert list(shown.drawn) == [f"chart-{name}" for name in names]
    assert all(shown.drawn.values())
    drawn = [count for name, count in shown.traces.items() if "spans" not in name]
    assert all(drawn), "a heat map is an image"
    (probe,) = re.findall(r'data-probe="([^"]*)"', found.dom)
    seen = json.loads(probe.replace("&quot;", '"').replace("&amp;", "&"))
    assert seen["overflow"] <= 0
    assert seen["scrolled"][0] <= 0, "the summary shows all of its columns"
    assert set(seen["cells"]) == {"rgb(230, 234, 240)"}, "numbers of a heat map can be read in the dark"
    assert len(seen["cells"]) == 6
