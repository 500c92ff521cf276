"""The report of a run, and what info says of one: numbers are those of the run, its calibration, other commands."""

import html
import json
import re
import shutil

import pytest
import torch

import regard as package
from regard.cli.main import main
from regard.files import checksums
from regard.files.folders import load_folder, save_folder
from regard_lab.run_info import span_rows

SMALL = ["--model.dim", "16", "--model.heads", "2", "--task.length", "32", "--batch-size", "4", "--warmup", "1"]
SMALL += ["--threads", "1", "--steps", "30"]
DYNAMIC = "dynamic_span(max_span=24, ramp=4)"
OWN = "early_exit(thresholds=(0.01, None))"
RUNS = {
    "early": ["--model.layers", "3", "--model.depth", "early_exit"],
    "own": ["--model.layers", "3", "--model.depth", OWN, "--model.position", "learned", "--model.max-length", "64"],
    "plain": ["--model.layers", "1"],
    "ponder": ["--model.layers", "2", "--model.depth", "universal(steps=3, epsilon=0.3)"],
    "looking": ["--model.layers", "2", "--model.attention", "adaptive_span(max_span=24, ramp=4, initial=0.5)", DYNAMIC],
}
LIMIT = ["--limit", "6", "--threads", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Five runs on a text that is easy, the first one calibrated, and one on another text; never to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    for name, first in (("numbers", 0), ("others", 5000)):
        lines = (f"{number} is followed by {number + 1}.\n" for number in range(first, first + 3000))
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    for name, words in {**RUNS, "elsewhere": RUNS["plain"]}.items():
        corpus = folder / ("others.txt" if name == "elsewhere" else "numbers.txt")
        data = ["--task.corpus", str(corpus), "--task.cache", str(folder / "cache")]
        assert main(["train", *SMALL, *words, *data, "--out", str(folder / name)]) == 0
    grid = ["--thresholds", "0.9", "0.1", "0.05", "0.01", "--passages", "60", "--length", "8", "--threads", "1"]
    assert main(["calibrate", str(folder / "early"), "--risk", "0.9", *grid]) == 0
    return folder


def figures(page: str) -> dict:
    """The figures that the page draws, by name."""
    body = page.split("const figures = {")[1].split("\n};")[0]
    return {name: json.loads(figure) for name, figure in re.findall(r'"chart-([\w-]+)": (\{.*\}),\n', body)}


def reported(regard, run, *words):
    answer = regard("report", run, *LIMIT, "--out", "page.html", "--json", *words)
    assert answer.code == 0, answer.err
    with open("page.html", encoding="utf-8") as file:
        return json.loads(answer.out), file.read()


def test_the_numbers_are_those_of_evaluate_and_of_the_calibration(regard, runs):
    found, page = reported(regard, runs / "early", "--beside", runs / "plain")
    early, plain = found["runs"]
    assert (early["name"], plain["name"]) == ("early", "plain")
    kept = json.loads(load_folder(runs / "early" / "exits")["calibration.json"])
    threshold = kept["calibrated"]["threshold"]
    assert early["used"]["threshold"] == threshold == 0.01
    for run, words in ((early, ("--exits", "calibrated")), (plain, ())):
        told = json.loads(regard("evaluate", runs / run["name"], "--limit", "6", "--json", *words).out)
        for name in ("bits_per_byte", "nats_per_token", "accuracy"):
            assert run["used"][name] == pytest.approx(told[name], rel=1e-6)
        assert run["tokens"] == told["tokens"] == found["tokens"]
    full = json.loads(regard("evaluate", runs / "early", "--limit", "6", "--json").out)
    assert early["fixed"][-1]["bits_per_byte"] == pytest.approx(full["bits_per_byte"], rel=1e-6)
    for at, one in zip(early["exits"], kept["curve"], strict=True):
        assert at["threshold"] == one["threshold"]
    assert early["exits"][-1] == {**early["used"], "threshold": threshold}
    for at in (early["used"], *early["exits"]):
        mean = sum(number * count for number, count in enumerate(at["taken"], 1)) / found["tokens"]
        cost = sum(one * count for one, count in zip(early["operations"], at["taken"], strict=True)) / found["tokens"]
        assert (sum(at["taken"]), at["depth"], at["operations"]) == (found["tokens"], pytest.approx(mean), cost)
    assert [at["depth"] for at in early["exits"]] == sorted((at["depth"] for at in early["exits"]), reverse=True)
    assert early["exits"][-1]["depth"] < 3
    assert [at["taken"] for at in early["fixed"]] == [
        [found["tokens"] * (n == at) for n in range(3)] for at in range(3)
    ]
    assert [at["operations"] for at in early["fixed"]] == early["fixed_operations"]
    assert list(figures(page)) == ["quality-depth", "quality-operations", "taken-0", "calibrated-0"]
    assert kept["guarantee"] in html.unescape(page)
    recorded = html.unescape(page.split('<pre id="recorded">')[1].split("</pre>")[0])
    assert json.loads(recorded) == {name: value for name, value in found.items() if name != "page"}


def test_another_threshold_and_a_run_that_nobody_calibrated(regard, runs, tmp_path):
    shutil.copytree(runs / "early", tmp_path / "early")
    shutil.rmtree(tmp_path / "early" / "exits")
    found, page = reported(regard, "early")
    (run,) = found["runs"]
    assert (run["used"]["threshold"], run["used"]["depth"], run["calibration"]) == (1.0, 3.0, None)
    assert run["used"]["operations"] == run["fixed_operations"][-1], "where no token may leave, nothing decides"
    assert "early is used at threshold 1, where no token leaves" in page
    assert set(figures(page)) == {"quality-depth", "quality-operations", "taken-0"}
    other, _ = reported(regard, "early", "--threshold", "0.05")
    (at,) = (one for one in run["exits"] if one["threshold"] == 0.05)
    assert other["runs"][0]["used"] == at
    assert regard("report", "early", *LIMIT).code == 0
    assert (tmp_path / "early" / "report.html").exists()
    assert regard("generate", "early", "12 is", "--max-new-tokens", "2").code == 0, "a run with a report is a run"


def test_thresholds_of_every_block_are_used_as_they_are(regard, runs):
    found, page = reported(regard, runs / "own")
    (run,) = found["runs"]
    taken = run["used"]["taken"]
    assert taken[0] > 0
    assert taken[1] == 0
    assert (run["used"]["threshold"], run["exits"], len(run["fixed"])) == (None, [], 3)
    assert [at["taken"].index(found["tokens"]) for at in run["fixed"]] == [0, 1, 2]
    cost = sum(one * count for one, count in zip(run["operations"], taken, strict=True)) / found["tokens"]
    assert run["used"]["operations"] == pytest.approx(cost)
    assert "threshold 1" not in page
    refused = regard("report", runs / "own", *LIMIT, "--threshold", "0.5", "--out", "page.html")
    assert refused.code == 2
    assert "a threshold of its own" in refused.err
    told = json.loads(regard("evaluate", runs / "own", "--limit", "6", "--json").out)["depth"]
    assert told == {"mean_layers": pytest.approx(run["used"]["depth"]), "of_layers": 3}


def test_runs_are_told_apart_by_their_names(regard, runs, tmp_path, monkeypatch):
    shutil.copytree(runs / "early", tmp_path / "early")
    monkeypatch.chdir(tmp_path / "early")
    for other, names in (("plain", ["early", "plain"]), ("early", [".", str(runs / "early")])):
        found, page = reported(regard, ".", "--beside", runs / other)
        assert [run["name"] for run in found["runs"]] == names
        assert all(f">{name}<" in page for name in names)


def test_spans_by_layer_and_head(regard, runs):
    found, page = reported(regard, runs / "looking")
    spans = {(one["layer"], one["head"]): one for one in found["runs"][0]["spans"]}
    assert set(spans) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    model = package.load(runs / "looking").model
    with torch.no_grad():
        learned = (24 * model.mechanisms[0].span.clamp(0, 1)).tolist()
    assert learned[0] != learned[1]
    assert [spans[0, head]["span"] for head in range(2)] == pytest.approx(learned, rel=1e-5)
    assert spans[1, 0]["mechanism"] == "dynamic_span"
    assert spans[1, 0]["low"] < spans[1, 0]["span"] < spans[1, 0]["high"]
    (cells,) = figures(page)["spans-0"]["data"]
    assert cells["z"] == [[spans[layer, head]["span"] for head in range(2)] for layer in range(2)]
    told = regard("info", runs / "looking")
    assert told.code == 0
    assert "Spans of tokens: the mean, and 10 to 90 % of them" in told.out
    shown = json.loads(regard("info", runs / "looking", "--json").out)["spans"]
    wanted = {(one["layer"], one["head"]): one["span"] for one in shown}
    assert wanted[0, 0] == pytest.approx(spans[0, 0]["span"])
    assert wanted[0, 1] == pytest.approx(spans[0, 1]["span"])
    assert wanted[1, 0] == pytest.approx(spans[1, 0]["span"], rel=0.1), "of more examples than the report was told"
    for layer, name in enumerate(("adaptive_span", "dynamic_span")):
        (line,) = re.findall(rf"^ +{layer} +{name} .*$", told.out, re.MULTILINE)
        assert line.index(f" {wanted[layer, 0]:.1f}") < line.rindex(f" {wanted[layer, 1]:.1f}")


def test_spans_of_layers_as_info_shows_them():
    def one(layer: int, head: int, z: float, kept: int, **of_tokens: float) -> dict[str, object]:
        given = {"layer": layer, "head": head, "span": z, "kept": kept, "mechanism": "adaptive_span"}
        return {**given, "low": z, "high": z, **of_tokens}

    spans = [one(2, 0, 1.0, 64), one(2, 1, 2.0, 1728), one(0, 1, 30.0, 64, low=8.0, high=44.4)]
    assert span_rows(spans) == [
        ("0", "adaptive_span", "", "30.0 (8 to 44)", "64"),
        ("2", "adaptive_span", "1.0", "2.0", "1,728"),
    ]


def test_info_of_a_run(regard, runs, monkeypatch):
    found = json.loads(regard("info", runs / "early", "--json").out)
    kept = json.loads(load_folder(runs / "early" / "exits")["calibration.json"])
    assert (found["kind"], found["step"], found["depth"]) == ("run", 30, "early_exit")
    promised = {"heads": "trained", "guarantee": kept["guarantee"], "of_these_weights": True}
    assert found["exits"] == {**promised, **kept["calibrated"]}
    model = package.load(runs / "early").model
    assert found["parameters"] == sum(x.numel() for x in model.parameters())
    assert kept["guarantee"] in regard("info", runs / "early").out
    monkeypatch.chdir(runs)
    shutil.copytree("plain", "linear", dirs_exist_ok=True)
    assert json.loads(regard("info", "linear", "--json").out)["kind"] == "mechanism", (
        "a name of the catalog comes first"
    )
    assert regard("info", "linear", "--json").err == "There is a run linear too: regard info ./linear\n"
    assert json.loads(regard("info", "./linear", "--json").out)["kind"] == "run"


def test_info_names_the_memory_of_a_run(regard, runs, tmp_path):
    data = ["--task.corpus", runs / "numbers.txt", "--task.cache", runs / "cache", "--steps", "1", "--carry"]
    memory = ["--model.memory", "recent(length=8)", "none"]
    regard("train", *SMALL[:-2], *data, "--model.layers", "2", *memory, "--out", tmp_path / "run")
    assert json.loads(regard("info", tmp_path / "run", "--json").out)["memory"] == ["recent(length=8)", "none"]
    assert "recent(length=8), none" in regard("info", tmp_path / "run").out
    assert json.loads(regard("info", runs / "plain", "--json").out)["memory"] == ["none"]


def test_info_promises_nothing_of_other_weights(regard, runs, tmp_path):
    shutil.copytree(runs / "early", tmp_path / "early")
    kept = load_folder(runs / "early" / "exits")
    document = checksums.opened(kept["calibration.json"])
    shutil.rmtree(tmp_path / "early" / "exits")
    other = json.dumps(checksums.sealed({**document, "model": "0" * 64})).encode()
    save_folder(tmp_path / "early" / "exits", {**kept, "calibration.json": other})
    assert json.loads(regard("info", "early", "--json").out)["exits"]["of_these_weights"] is False
    shown = regard("info", "early")
    assert shown.code == 0
    assert document["guarantee"] not in shown.out
    assert "for other weights than these" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plain",), "takes every block, and no head has a span"),
        (("early", "--beside", "elsewhere"), "was trained on other data"),
        (("early", "--threshold", "1.5"), "--threshold must lie between 0 and 1"),
        (("ponder", "--threshold", "0.5"), "has no exits with a threshold"),
        (("early", "--language", "zh"), "whose report is in English"),
        (("early", "--limit", "-1"), "--limit must be at least 0"),
        (("elsewhere.html", "--limit", "3"), "is no run: --limit is for the report of one"),
    ],
)
def test_what_makes_no_sense_is_refused(regard, runs, monkeypatch, words, said):
    monkeypatch.chdir(runs)
    answer = regard("report", *words, "--threads", "1", "--out", "nowhere.html")
    assert answer.code == 2, answer.err
    assert said in answer.err
    assert not (runs / "nowhere.html").exists()
    refused = regard("info", "softmax", "--trust")
    assert refused.code == 2
    assert "--trust is for runs" in refused.err
