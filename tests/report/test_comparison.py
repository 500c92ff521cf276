"""A real comparison from end to end: interrupted, continued, complete; and the folders it refuses."""

import json
import re
import shlex
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tyro

import regard
from regard.cli.main import main
from regard.core.errors import CheckpointError, ConfigError, DataError, NumericsError, ResourceError
from regard_lab.benchmark import comparison, job_files, plan, trainings
from regard_lab.benchmark.comparison import compare
from regard_lab.benchmark.config import CompareConfig, ShapeConfig
from regard_lab.benchmark.language import said
from regard_lab.benchmark.measures import TEXT
from regard_lab.benchmark.results import Expected, reproduce
from regard_lab.cli.compare import Options
from regard_lab.tasks.config import RecallConfig, TextConfig
from tests.report.conftest import SPECS


def parsed(command: str) -> CompareConfig:
    """The configuration of a `regard compare` command line."""
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("regard", "compare")
    options = tyro.cli(Options, args=words, config=(tyro.conf.FlagCreatePairsOff,))
    return CompareConfig(**{name: getattr(options, name) for name in CompareConfig.__dataclass_fields__})


def test_it_said_what_to_expect_before_anything_else(compared):
    first, *probes, second, third = compared.killed.splitlines()[:7]
    assert first == "planning: up to 3 steps of every specification"
    named = [f"{spec}, {name}" for name in ("text", "recall") for spec in SPECS]
    for at, (line, name) in enumerate(zip(probes, named, strict=True), 1):
        assert re.match(rf"planning: {name}: \d+ ms a step \({at} of 4\)", line)
    assert second.startswith("plan: ")
    assert third.startswith("expected: ")
    assert "minutes" in third
    assert "GiB of memory; 2 specifications x 1 seeds, 12 steps on text, 6 on recall each" in third


def test_a_killed_comparison_leaves_no_process_behind(compared):
    assert compared.child_ended


def test_finished_jobs_are_not_done_again(compared):
    assert {"plan.json"} < set(compared.times) < {path.name for path in (compared.folder / "jobs").iterdir()}
    now = {name: (compared.folder / "jobs" / name).stat().st_mtime_ns for name in compared.times}
    assert now == compared.times
    assert not any(line.startswith("softmax, seed 0, text") for line in compared.err.splitlines())
    assert "planning" not in compared.err
    assert "linear / softmax, seed 0, text: " in compared.err


def test_the_continued_comparison_is_complete(compared):
    assert compared.code == 0
    assert "Traceback" not in compared.err
    assert {"results.json", "report.html", "comparison.json"} <= {path.name for path in compared.folder.iterdir()}
    assert f"Report: {compared.folder / 'report.html'}" in compared.out.replace("\n", " ").replace("  ", " ")
    assert "No recommendation yet: " in compared.out


def test_the_table_in_the_terminal(compared):
    lines = compared.out.splitlines()
    for name in (
        "softmax",
        "linear / softmax",
        "3-gram (baseline)",
        "xz (baseline)",
        "exact recall",
        "decoding memory",
    ):
        assert sum(line.startswith(f" {name} ") for line in lines) == 1
    for heading in ("bits/byte", "recall", "train tok/s", "peak MiB", "us/token at 192", "state KiB at 192"):
        assert heading in compared.out


@pytest.fixture
def copied(compared, tmp_path) -> Path:
    """The folder of the comparison for a test that writes into it: workers share the original."""
    return shutil.copytree(compared.folder, tmp_path / "copied")


def test_a_third_call_measures_nothing(compared, copied, capsys):
    jobs = {path: path.stat().st_mtime_ns for path in (copied / "jobs").iterdir()}
    assert main([*compared.words[:-1], str(copied), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert {path: path.stat().st_mtime_ns for path in (copied / "jobs").iterdir()} == jobs
    assert {**found, "created": ""} == {**compared.results, "created": ""}
    assert captured.err.startswith("expected: ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--text-steps", "13"], "text_steps"),
        (["--shape.mlp", "relu", "--seeds", "2"], "seeds, shape"),
        (["--budget", "5m"], "budget"),
    ],
)
def test_other_settings_are_refused_in_the_same_folder(compared, capsys, words, named):
    before = {path: path.stat().st_mtime_ns for path in compared.folder.rglob("*")}
    assert main([*compared.words, *words]) == 2
    shown = capsys.readouterr()
    assert f"holds a comparison with other settings ({named}); choose another --out" in shown.err
    assert shown.out == ""
    assert {path: path.stat().st_mtime_ns for path in compared.folder.rglob("*")} == before


def small(tmp_path: Path, **changes) -> CompareConfig:
    (tmp_path / "text.txt").write_text("".join(f"line {n} of the text\n" for n in range(300)))
    shape = ShapeConfig(dim=8, layers=1, heads=1)
    text = TextConfig(corpus=str(tmp_path / "text.txt"), cache=str(tmp_path / "cache"), length=16)
    base = CompareConfig(specs=("uniform",), shape=shape, recall_shape=shape, text=text, lengths=(32,), batch_size=4)
    return replace(base, **changes)


def test_changed_text_is_refused_too(tmp_path, monkeypatch):
    """The jobs that are done were done on the text as it was."""
    monkeypatch.setattr("regard_lab.benchmark.comparison._plan", lambda *_: pytest.exit("planned"))
    out = tmp_path / "out"
    with pytest.raises(BaseException, match="planned"):
        compare(small(tmp_path), out)
    config = small(tmp_path)
    with (tmp_path / "text.txt").open("a") as file:
        file.write("one more line\n")
    with pytest.raises(ConfigError, match=r"other settings \(data\)"):
        compare(config, out)


def test_data_that_is_too_small_is_explained_and_nothing_is_written(tmp_path):
    short = replace(small(tmp_path).text, length=4000)
    with pytest.raises(DataError, match=r"too small for windows of 4000 tokens.*set --text.length to"):
        compare(small(tmp_path, text=short), tmp_path / "out")
    with pytest.raises(DataError, match=r"has \d+ training windows of 16 tokens, fewer than one batch of 5000"):
        compare(small(tmp_path, batch_size=5000), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_that_hold_something_else(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.tex").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and holds no comparison; choose another --out"):
        compare(small(tmp_path), tmp_path / "thesis")
    with pytest.raises(ResourceError, match="cannot write"):
        compare(small(tmp_path), tmp_path / "thesis" / "text.tex")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["text.tex"]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("comparison.json", "choose another --out"), ("jobs/plan.json", "remove it, and only that job is repeated")],
)
@pytest.mark.parametrize(
    "content", ['{"text_st', '{"result": 1, "sha256": "0"}', '{"result": 1, "sha": "%s"}' % ("0" * 64)]
)
def test_damaged_files_are_named(tmp_path, name, way_out, content):
    out = tmp_path / "out"
    (out / "jobs").mkdir(parents=True)
    config = small(tmp_path)
    from regard_lab.benchmark.comparison import _claim, _enough

    for path in (out / "jobs").parent.glob("*"):
        path.rmdir()
    _claim(config, out, "lm", _enough(config, TEXT))
    (out / "jobs").mkdir()
    (out / name).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: .*; {way_out}"):
        compare(config, out)


def test_no_flipped_bit_of_a_job_is_believed(compared, copied, capsys):
    """Nor of the results, by the report."""
    named = 0
    for path in sorted((copied / "jobs").iterdir()):
        data, wanted = path.read_bytes(), job_files.result(path)
        for bit in range(0, 8 * len(data), 8 * len(data) // 40 + 1):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                assert job_files.result(path) == wanted
            except CheckpointError as error:
                named += f"{path} is damaged" in str(error)
        path.write_bytes(data)
    assert named > 200
    numbers = json.loads((copied / "jobs/plan.json").read_text())
    numbers["result"]["steps"]["text"] += 1
    (copied / "jobs/plan.json").write_text(json.dumps(numbers))
    results = json.loads((copied / "results.json").read_text())
    results["entries"][0]["parameters"] += 1
    (copied / "results.json").write_text(json.dumps(results))
    for code, words, name in (
        (4, [*compared.words[:-1], str(copied)], "plan"),
        (3, ["report", str(copied)], "results"),
    ):
        assert main(words) == code
        assert f"{name}.json" in (said := capsys.readouterr().err)
        assert "its checksum differs from its content" in said


def test_a_mechanism_that_only_this_process_knows(tmp_path):
    from typing import final

    from regard import catalog
    from regard.attention.dense.uniform import Uniform

    @final
    class OnlyHere(Uniform):
        """Uniform under another name."""

    OnlyHere.__module__ = "__main__"
    catalog.register(OnlyHere)
    try:
        with pytest.raises(ConfigError, match=r"'only_here' is registered in this process only.*module:Class"):
            compare(small(tmp_path, specs=("only_here",)), tmp_path / "out")
    finally:
        catalog.unregister("only_here")


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (DataError("a page is missing"), r"^uniform, seed 0, text: a page is missing$"),
        (
            NumericsError("step 3: the loss is not finite. Go on"),
            r"^every specification diverged; the last, uniform, in training on text with seed 0: step 3: the loss is "
            r"not finite\. Compare with a smaller learning rate$",
        ),
    ],
)
def test_a_training_that_fails_says_whose_it_was(tmp_path, monkeypatch, error, wanted):
    def fail(jobs, *, threads, each=None):
        raise error

    monkeypatch.setattr(comparison, "_plan", lambda *_: Expected({"text": 1, "recall": 1}, 0.0, 0))
    monkeypatch.setattr(trainings, "run_apart", fail)
    with pytest.raises(type(error), match=wanted):
        compare(small(tmp_path, specs=("uniform",)), tmp_path / "out")


def test_what_diverges_is_left_out_and_the_others_are_compared(tmp_path, in_this_process, monkeypatch):
    run_apart, begun = trainings.run_apart, []

    def diverging(jobs, **options):
        begun.append(jobs[0].run)
        if jobs[0].model.attention[0] == "linear" and jobs[0].model.seed == 1:
            raise NumericsError("step 3: the loss is not finite")
        return run_apart(jobs, **options)

    monkeypatch.setattr(trainings, "run_apart", diverging)
    config = small(tmp_path, specs=("linear", "uniform", "softmax"), seeds=3, recall_steps=0, text_steps=3)
    results = compare(config, tmp_path / "out")
    assert [entry["spec"] for entry in results["entries"]] == ["uniform", "softmax"]
    assert results["config"]["specs"] == ["linear", "uniform", "softmax"]
    left_out = "linear diverged in training on text with seed 1 and is left out; give a smaller learning rate"
    assert left_out in [said("en", note) for note in results["notes"]]
    assert len(begun) == 8, "what diverged was trained again"
    assert compare(config, tmp_path / "out")["entries"] == results["entries"]
    assert len(begun) == 8
    (tmp_path / "out" / "results.json").rename(tmp_path / "results.json")
    assert main(["report", str(tmp_path / "results.json"), "--out", str(tmp_path / "report.html")]) == 0
    assert "linear diverged in training" in (tmp_path / "report.html").read_text()


def test_the_command_to_reproduce_gives_the_same_configuration(compared):
    config = parsed(compared.results["reproduce"])
    assert json.loads(json.dumps(asdict(config))) == compared.results["config"]


@pytest.mark.parametrize(
    "config",
    [
        CompareConfig(),
        CompareConfig(budget="5m", seeds=3),
        CompareConfig(specs=("local(window=8)", "a:2 + b:2".replace("a", "linear").replace("b", "softmax"))),
        CompareConfig(text=TextConfig(corpus="it's here/my text.txt", separator="--\n$x `y`", holdout=0.2)),
        CompareConfig(text=TextConfig(tokenizer="bpe", vocab_size=300, field="body")),
        CompareConfig(recall=RecallConfig(filler="random"), lengths=(32, 64), learning_rate=1e-4, evaluate_examples=0),
        CompareConfig(shape=ShapeConfig(mlp="none", dim=64), recall_shape=ShapeConfig(short_convolution=0)),
    ],
)
def test_any_configuration_survives_the_command_line(config):
    found = parsed(reproduce(config, Expected(steps={"text": 77, "recall": 5}, minutes=1.0, peak_bytes=1)))
    # A default is written nowhere; numbers and spaces, quotes, leading dashes and line breaks come back as they were.
    assert found == replace(config, budget=None, text_steps=77, recall_steps=5)


def test_a_real_comparison_keeps_its_budget(tmp_path, in_this_process, monkeypatch):
    """By the clock of the processor, so that it holds beside anything; a machine that is too busy is a refusal."""
    monkeypatch.setattr(plan, "WRITING", 0.05)
    began = time.process_time()
    config = small(tmp_path, budget="4s", recall_steps=0, threads=1, seeds=1)
    refused = ""
    try:
        found = compare(config, tmp_path / "out", clock=time.process_time)
        assert found["expected"]["steps"]["text"] >= TEXT.least_steps
    except ConfigError as error:
        refused = str(error)
    assert time.process_time() - began <= 1.1 * 4
    assert not refused or re.search("is too little for 1 specifications.*the machine was busy", refused)


def test_from_python(compared, copied):
    """The same function without a command: finished, so it only reads."""
    said: list[str] = []
    config = parsed(compared.results["reproduce"])
    found = regard.compare(config=config, out=copied, tell=said.append)
    assert found["recommendation"] == compared.results["recommendation"]
    assert said[0].startswith("expected: ")
    with pytest.raises(ConfigError, match="other settings"):
        regard.compare(["softmax", "linear"], config=config, out=copied)


GATED = ["forgetting", "softmax:1 + forgetting:1", "tests.mutants.toys:ToyGated"]


def test_mechanisms_with_gates_are_compared(tmp_path, in_this_process, capsys):
    (tmp_path / "words.txt").write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(900)))
    words = ["--shape.dim", "8", "--shape.heads", "2", "--shape.layers", "1", "--recall-shape.dim", "8"]
    words += ["--recall-shape.heads", "2", "--recall-shape.layers", "1", "--text.length", "32", "--text.holdout", "0.2"]
    words += ["--recall.length", "16", "--recall.num-pairs", "2", "--recall.num-held-out", "20", "--lengths", "32"]
    words += ["--text-steps", "2", "--recall-steps", "2", "--batch-size", "4", "--recall-batch-size", "4"]
    words += ["--rounds", "1", "--evaluate-examples", "24", "--threads", "1"]
    words += ["--text.corpus", str(tmp_path / "words.txt"), "--text.cache", str(tmp_path / "cache")]
    assert main(["compare", *GATED, *words, "--out", str(tmp_path / "out"), "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["spec"] for entry in entries] == GATED
