"""The report of a recorded comparison in a browser: wide and narrow, light and dark, English and Chinese."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from regard.files.checksums import opened
from regard_lab.benchmark.language import chinese
from regard_lab.report import html
from regard_lab.report.charts import charts
from tests.report.test_browser import framed

RECORD = Path(__file__).parents[2] / "docs" / "recorded" / "comparisons" / "state_of_the_union.json"
PROBE = """<script>
window.addEventListener("load", () => {
  const all = (selector, inside = document) => Array.from(inside.querySelectorAll(selector));
  for (const details of all("details")) details.open = true;
  const found = { width: innerWidth, lang: document.documentElement.lang, cut: [], collided: [], ticks: {} };
  found.overflow = document.documentElement.scrollWidth - innerWidth;
  found.tables = all(".scroll").map((x) => x.scrollWidth - x.clientWidth);
  const style = (x) => getComputedStyle(x);
  found.colours = [style(document.body).backgroundColor, style(all("#summary td")[0]).color];
  const words = ".xtick text, .ytick text, .g-xtitle, .g-ytitle, .annotation text";
  for (const chart of all(".chart")) {
    const box = chart.getBoundingClientRect(), texts = all(words, chart).filter((x) => x.textContent);
    const labels = texts.map((x) => [x.textContent, x.getBoundingClientRect()]);
    for (const [text, x] of labels)
      if (x.left < box.left - 1 || x.right > box.right + 1) found.cut.push([chart.id, text]);
    labels.forEach(([one, a], at) => labels.slice(at + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) found.collided.push([chart.id, one, other]);
    }));
    found.ticks[chart.id] = all(".xtick text", chart).map((x) => x.textContent).filter(Boolean);
    found.fill = style(all(".xtick text", chart)[0]).fill;
  }
  const drawn = () => all("#chart-quality .trace").length, before = drawn();
  const button = all("[data-chart=chart-quality] button")[0];
  button.click();
  setTimeout(() => {
    found.hidden = before - drawn();
    found.pressed = button.getAttribute("aria-pressed");
    parent.postMessage(JSON.stringify([window.name, found]), "*");
  }, 300);
});
</script></body>"""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return opened(RECORD.read_bytes())


@pytest.mark.parametrize(("scheme", "wide", "narrow"), [("light", "en", "zh"), ("dark", "zh", "en")])
def test_wide_and_narrow(recorded, tmp_path, scheme, wide, narrow):
    texts = {language: html.render(recorded, language).replace("</body>", PROBE) for language in ("en", "zh")}
    faults = (
        "<style>#summary { min-width: 1000px } h1 { width: 950px } .g-xtitle { transform: translateY(-15px) }</style>"
    )
    faulty = texts["zh"].replace("</head>", f"{faults}</head>")
    seen, found = framed(
        {"wide": (texts[wide], 1400), "narrow": (texts[narrow], 400), "faulty": (faulty, 900)}, tmp_path, scheme
    )
    assert (seen.console, seen.requests) == ([], [])
    faulty = found.pop("faulty")  # the probe sees what it looks for
    assert faulty["overflow"] > 0 < max(faulty["tables"])
    assert faulty["collided"]
    assert {name: one["width"] for name, one in found.items()} == {"wide": 1400, "narrow": 400}
    paper, ink = {
        "light": ("rgb(255, 255, 255)", "rgb(28, 36, 48)"),
        "dark": ("rgb(18, 22, 28)", "rgb(230, 234, 240)"),
    }[scheme]
    for name, one in found.items():
        assert one["lang"] == {"en": "en", "zh": "zh-CN"}[wide if name == "wide" else narrow]
        assert one["overflow"] <= 0
        assert max(one["tables"]) <= 0, one["tables"]
        assert one["colours"] == [paper, ink]
        assert one["fill"] == ink
        assert one["cut"] == []
        assert one["collided"] == []
        assert (one["hidden"], one["pressed"]) == (1, "false")
        lengths = [f"{length:,}" for length in recorded["config"]["lengths"]]
        assert set(one["ticks"]["chart-cost-both"]) <= set(lengths)
        assert one["ticks"]["chart-cost-both"][-1] == lengths[-1]


class Text(HTMLParser):
    """Everything that a reader of the page sees or hears, but for commands and settings, which are what they are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self._silent: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "style", "pre"):
            self._silent.append(tag)
        self.said += [
            value for name, value in attributes if name in ("aria-label", "alt", "title", "data-label") and value
        ]

    def handle_endtag(self, tag):
        if self._silent and tag == self._silent[-1]:
            self._silent.pop()

    def handle_data(self, data):
        if not self._silent and data.strip():
            self.said.append(data.strip())


def english(results: dict[str, Any], texts: list[str]) -> list[str]:
    """Texts with English words besides names, units and options."""
    names = [entry["spec"] for entry in results["entries"]] + [row["name"] for row in results["baselines"]]
    config = results["config"]
    names += [
        config["text"]["corpus"],
        config["classification"]["data"],
        results["version"],
        results["created"],
        "regard",
    ]
    names += ["softmax", "KiB", "MiB", "F1", "scikit-learn", "--seeds", "--rounds", "ms", "µs", "s", "B", "t", "k"]
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    bare = {text: re.sub(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", "", text) for text in texts}
    return [text for text, rest in bare.items() if re.search("[A-Za-z]", rest)]


def test_no_english_remains_in_the_chinese_report(recorded, of_task):
    for results in (recorded, *(of_task(task).results for task in ("mlm", "classify", "recall"))):
        texts = Text(html.render(results, "zh")).said
        texts += drawn(results)
        assert len(texts) > 100
        assert english(results, texts) == []
        assert english(results, Text(html.render(results)).said)


def drawn(results: dict[str, Any]) -> list[str]:
    """The words in the figures."""
    from regard_lab.benchmark.language import Words

    found: list[str] = []
    for chart in charts(results, Words("zh")):
        layout = chart.figure.layout
        found += [layout.xaxis.title.text, layout.yaxis.title.text, *(one.text for one in layout.annotations)]
        found += [*(layout.xaxis.ticktext or ()), *(layout.yaxis.ticktext or ())]
        found += [trace.name for trace in chart.figure.data]
    return [text for text in found if text]


def test_both_languages_have_the_same_values():
    for text, translated in chinese().items():
        values = [set(re.findall(r"\{(\w+)", one)) for one in (text, translated)]
        assert values[0] >= values[1], text
        assert values[0] - values[1] <= {"reason"}, text  # of a busy machine, which the Chinese sentence names itself
        assert re.search("[\u4e00-\u9fff]", translated) or not re.search("[A-Za-z]", re.sub(r"\{[^}]*\}", "", text)), (
            text
        )


def test_every_sentence_in_the_code_has_its_chinese():
    import ast

    source = Path(html.__file__).parents[1]
    found: list[str] = []

    def constants(node: ast.AST) -> list[str]:
        if isinstance(node, ast.IfExp):
            return constants(node.body) + constants(node.orelse)
        return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []

    for path in (*source.glob("report/*.py"), *source.glob("benchmark/*.py"), source / "cli" / "compare.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("say", "sentence"):
                found += [text for one in node.args for text in constants(one)]
    found += re.findall(r'say\("([^"]*)"', (source / "report/templates/report.html").read_text(encoding="utf-8"))
    assert len(found) > 80
    assert sorted(set(found) - set(chinese())) == []
