"""The report in a real browser: no console message, no network request, charts drawn, tables readable."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regard_lab.report import accuracy, run
from regard_lab.report.charts import charts
from tests.report import test_run_charts as runs

TASKS = ("mlm", "classify", "recall")
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


def visit(page: Path, scratch: Path, scheme: str = "light") -> Visit:
    """Open a page in a headless Chromium that cannot resolve any name. scheme: light or dark."""
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
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
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


FRAMES = """<!doctype html><html><head><link rel="icon" href="data:,">
<meta name="color-scheme" content="light dark"></head><body><script>
const all = {};
addEventListener("message", (event) => {
  const [name, found] = JSON.parse(event.data);
  all[name] = found;
  document.body.dataset.probe = JSON.stringify(all);
});
</script>WHERE</body></html>"""
"""No window of this browser is narrower than 500 pixels; a frame is."""


def framed(pages: dict[str, tuple[str, int]], scratch: Path, scheme: str = "light") -> tuple[Visit, dict[str, Any]]:
    """Open pages, given with their widths, in one browser, each in a frame; and what each posts with its name."""
    frames = ""
    for name, (text, width) in pages.items():
        (scratch / f"{name}.html").write_text(text, encoding="utf-8")
        style = f"width: {width}px; height: 2000px; border: 0"
        frames += f'<iframe name="{name}" src="{name}.html" style="{style}"></iframe>\n'
    (scratch / "frames.html").write_text(FRAMES.replace("WHERE", frames), encoding="utf-8")
    found = visit(scratch / "frames.html", scratch, scheme)
    (probe,) = re.findall(r'data-probe="([^"]*)"', found.dom) or ["{}"]
    return found, json.loads(probe.replace("&quot;", '"').replace("&lt;", "<").replace("&amp;", "&"))


PROBE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const all = (selector, inside = document) => Array.from(inside.querySelectorAll(selector));
  const tall = (selector) => all(selector).map((x) => x.getBoundingClientRect().height);
  const inside = (selector) => Object.fromEntries(all(".chart").map((x) => [x.id, all(selector, x).length]));
  for (const details of all("details")) details.open = true;
  parent.postMessage(JSON.stringify([window.name, {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    summary: all("#summary td").map((x) => x.innerText),
    clipped: all("#summary th, #summary td").map((x) => x.scrollWidth - x.clientWidth),
    tables: tall("table.data"), charts: tall("div.chart"),
    drawn: inside("svg.main-svg"), traces: inside("g.trace"),
    titles: all("[data-title]").map((x) => x.dataset.title),
    colours: all("td").map((x) => getComputedStyle(x).color),
    scrolled: all(".scroll").map((x) => x.scrollWidth - x.clientWidth),
    cells: all(".heatmap-label text").map((x) => getComputedStyle(x).fill),
  }]), "*");
}, 300));
</script></body>"""


@pytest.fixture(scope="module")
def opened(compared, of_task, microscope, tmp_path_factory) -> tuple[Visit, dict[str, Any]]:
    """Every kind of page in the dark, each with a script at its end that measures what is on the screen."""
    scratch, decided = tmp_path_factory.mktemp("browser"), runs.results()
    decided["runs"][0]["depth"] = "early_exit(" + ", ".join(f"option={number}" for number in range(9)) + ")"
    pages = {"comparison": compared.page, "accuracy": accuracy.render(microscope), "run": run.render(decided)}
    pages |= {task: of_task(task).page for task in TASKS}
    return framed({name: (text.replace("</body>", PROBE), 1280) for name, text in pages.items()}, scratch, "dark")


def test_nothing_on_the_console_and_no_request(opened):
    found, _ = opened
    assert found.console == []
    assert found.requests == []


def test_every_chart_is_drawn(opened, compared):
    probe = opened[1]["comparison"]
    assert len(probe["drawn"]) == 9
    assert all(count > 0 for count in probe["drawn"].values()), probe["drawn"]
    specs = len(compared.results["entries"])
    assert all(count >= specs for count in probe["traces"].values())
    assert all(130 < height < 600 for height in probe["charts"])


def test_tables_are_readable(opened):
    probe = opened[1]["comparison"]
    assert probe["overflow"] <= 0
    assert max(probe["clipped"]) <= 0
    assert {"softmax", "linear / softmax", "3-gram (baseline)", "xz (baseline)"} <= set(probe["summary"])
    assert len(probe["tables"]) == 9
    assert all(height > 30 for height in probe["tables"])
    assert set(probe["colours"]) == {"rgb(230, 234, 240)", "rgb(163, 173, 186)"}


@pytest.mark.parametrize("task", TASKS)
def test_the_page_of_every_task_opens(opened, of_task, task):
    drawn = opened[1][task]["drawn"]
    assert list(drawn) == [f"chart-{chart.name}" for chart in charts(of_task(task).results)]
    assert all(count > 0 for count in drawn.values()), drawn


def test_nothing_can_be_sent_away(opened):
    """Plotly's own tool bar offers to upload a chart."""
    for name, probe in opened[1].items():
        assert probe["titles"], name
        assert not [title for title in probe["titles"] if re.search("share|cloud|edit|send", title, re.IGNORECASE)]


PAGE = '<!doctype html><html><head><link rel="icon" href="data:,"></head><body>{}</body></html>'


def test_the_visit_sees_errors_and_requests(tmp_path):
    """Each of these pages has exactly one fault, and the last none; of its charts one is empty."""
    chart = '<div class="chart" id="a"><div><svg class="main-svg"></svg></div></div><div class="chart js" id="b"></div>'
    faults = {
        "error": "<script>nowhere();</script>",
        "logged": "<script>console.error('wrong')</script>",
        "request": '<img src="http://127.0.0.1:47123/a.png">',
        "fetch": "<script>fetch('http://localhost:47123/b').catch(() => 0)</script>",
        "none": f"{chart}<svg class='main-svg'></svg><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>{PROBE}",
    }
    found, probes = framed({name: (PAGE.format(body), 500) for name, body in faults.items()}, tmp_path)
    said = {name: [line for line in found.console if f"/{name}.html" in line] for name in faults}
    assert "nowhere is not defined" in said["error"][0]
    assert "wrong" in said["logged"][0]
    assert said["none"] == []
    assert set(found.requests) == {"http://127.0.0.1:47123/a.png", "http://localhost:47123/b"}
    assert probes["none"]["drawn"] == {"a": 1, "b": 0}


def test_a_missing_browser_is_a_failure_where_it_is_required(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for required, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setitem(globals(), "REQUIRED", required)
        with pytest.raises(outcome, match="chromium is not on PATH"):
            visit(tmp_path / "page.html", tmp_path)


def test_approximations_are_drawn(opened, microscope):
    shown = opened[1]["accuracy"]
    assert len(shown["drawn"]) == sum(chart.figure is not None for chart in accuracy.charts(microscope))
    assert all(shown["drawn"].values())
    assert all(shown["traces"].values())


def test_what_runs_decide_is_drawn(opened):
    seen = opened[1]["run"]
    names = ("quality-depth", "quality-operations", "taken-0", "calibrated-0", "spans-0")
    assert list(seen["drawn"]) == [f"chart-{name}" for name in names]
    assert all(seen["drawn"].values())
    drawn = [count for name, count in seen["traces"].items() if "spans" not in name]
    assert all(drawn), "a heat map is an image"
    assert seen["overflow"] <= 0
    assert seen["scrolled"][0] <= 0, "the summary shows all of its columns"
    assert set(seen["cells"]) == {"rgb(230, 234, 240)"}, "numbers of a heat map can be read in the dark"
    assert len(seen["cells"]) == 6
