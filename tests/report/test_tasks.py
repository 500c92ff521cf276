"""Comparisons by other tasks than text: what is measured, what stands beside it, how it goes on, what is refused."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from regard.core.errors import ConfigError, DataError, UnsupportedError
from regard.files.checksums import opened
from regard_lab.benchmark import references, trainings
from regard_lab.benchmark.comparison import compare
from regard_lab.cli.compare import configured
from regard_lab.report.charts import charts
from regard_lab.report.summary import subject, table, tie_note
from regard_lab.tasks import MaskedConfig, build_task
from regard_lab.tasks.base import IGNORE
from regard_lab.training.data_order import DataOrder
from regard_lab.training.evaluation import measured

BESIDE = {"mlm": ["unigram"], "classify": ["majority", "linear", "lstm"], "recall": []}
MEASURE = {"mlm": "masked", "classify": "classification", "recall": "recall"}
HEADS = {
    "mlm": ["bits/masked byte", "guessed", "train tok/s", "peak MiB"],
    "classify": ["accuracy", "train tok/s", "peak MiB"],
    "recall": ["recall", "train tok/s", "peak MiB", "us/token at 64", "state KiB at 64"],
}
LOSS = ["differences", "quality", "loss"]
CHARTS = {
    "mlm": [*LOSS, "cost-both", "cost-forward"],
    "classify": [*LOSS, "classification", "cost-both", "cost-forward"],
    "recall": [*LOSS, "recall", "cost-both", "cost-forward", "decode-microseconds", "decode-state_bytes"],
}
tasks = pytest.mark.parametrize("task", ["mlm", "classify", "recall"])


@tasks
def test_what_every_task_reports(of_task, task):
    done = of_task(task)
    found, name = done.results, MEASURE[task]
    assert found["task"] == task
    assert [entry["spec"] for entry in found["entries"]] == list(done.config.specs)
    assert [row["name"] for row in found["baselines"]] == BESIDE[task]
    assert list(found["ties"]) == list(found["expected"]["steps"]) == [name]
    metric = "bits_per_byte" if task == "mlm" else "accuracy"
    for row in [*(entry[name] for entry in found["entries"]), *found["baselines"]]:
        assert row[metric]["low"] <= row[metric]["middle"] <= row[metric]["high"]
        assert row["seeds"][0] >= 0
    for entry in found["entries"]:
        assert len(entry[name]["seeds"]) == len(entry[name]["curves"]) == 2
        assert sum(entry[name]["seeds"]) / 2 == pytest.approx(entry[name][metric]["middle"], rel=1e-9)
        kinds = Counter(row["kind"] for row in entry["cost"])
        assert kinds == {"forward": 2, "both": 2}
        assert len(entry["decode"]) == (2 if task == "recall" else 0)
    assert found["recommendation"]["spec"] is None  # two seeds
    needs = {"mlm": ["masked"], "classify": ["classification"], "recall": ["recall", "memory"]}[task]
    assert [one["need"] for one in found["advice"]] == [*needs, "length", "speed"]
    assert (found["recall_chance"] is None) == (task != "recall")


@tasks
def test_the_table_and_the_page_of_every_task(of_task, task):
    done = of_task(task)
    columns, rows = table(done.results)
    assert columns == ("specification", *HEADS[task], "faster from", "parameters")
    assert [row[0] for row in rows] == [*done.config.specs, *(f"{name} (baseline)" for name in BESIDE[task])]
    assert all(cell for row in rows[:2] for cell in row)
    assert [chart.name for chart in charts(done.results)] == CHARTS[task]
    assert subject(done.results).split(" ")[0] in {"mlm": "Text:", "classify": "Classes", "recall": "Exact"}[task]
    assert subject(done.results) in done.page
    assert done.results["recommendation"]["reason"].replace("'", "&#39;") in done.page
    unit = {"mlm": "documents", "classify": "images", "recall": "documents"}[task]
    assert f"paired bootstrap over {unit})" in tie_note(done.results)


@tasks
def test_a_finished_comparison_is_only_read(of_task, task, monkeypatch):
    done = of_task(task)
    monkeypatch.setattr(trainings, "run_apart", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(references, "run_apart", lambda *_, **__: pytest.fail("trained again"))
    found = compare(done.config, done.folder)
    assert {**found, "created": ""} == {**done.results, "created": ""}
    with pytest.raises(ConfigError, match=r"other settings \(seeds\)"):
        compare(replace(done.config, seeds=1), done.folder)


def test_the_unigram_is_counted_here(of_task):
    """p = (count + 1) / (tokens + 257) over the windows that seed 0 saw; the same masks as the models."""
    done = of_task("mlm")
    config = done.config
    task = build_task(MaskedConfig(**vars(config.text), rate=config.masked_rate))
    train, valid = task.examples("train"), task.examples("valid")
    order = DataOrder(len(train), config.masked_batch_size, 0)
    counts = Counter(dict.fromkeys(range(257), 1))
    for index in {index for step in range(config.masked_steps) for index in order.batch(step)}:
        counts.update(token for token in train[index].targets.tolist() if token != IGNORE)
    nats, nbytes, right = 0.0, 0, []
    common = max(counts, key=lambda token: (counts[token], -token))
    for index in measured(len(valid), config.evaluate_examples):
        answers = [token for token in valid[index].targets.tolist() if token != IGNORE]
        nats -= sum(math.log(counts[token] / sum(counts.values())) for token in answers)
        nbytes += valid[index].nbytes
        right += [token == common for token in answers]
    (row,) = done.results["baselines"]
    assert row["bits_per_byte"]["middle"] == pytest.approx(nats / math.log(2) / nbytes, rel=1e-9)
    assert row["accuracy"] == pytest.approx(np.mean(right), rel=1e-12)
    assert (row["peak_bytes"], row["parameters"]) == (None, None)


def test_classes_are_learned_and_beat_the_majority(of_task):
    """The three classes are bright bars at three places: 40 steps are enough, for models without attention too."""
    done = of_task("classify")
    rows = {row["name"]: row for row in done.results["baselines"]}
    rows |= {entry["spec"]: entry["classification"] for entry in done.results["entries"]}
    with np.load(done.config.classification.data) as file:
        labels = file["train_labels"]
    most = np.bincount(labels).max() / len(labels)
    majority = rows.pop("majority")
    assert majority["accuracy"]["middle"] == pytest.approx(most, abs=0.2)
    assert majority["tokens_per_second"] is None
    for name in ("softmax", "linear"):
        assert rows[name]["accuracy"]["middle"] > 0.8, name
    for row in rows.values():
        assert row["tokens_per_second"] > 0


def job(folder, name):
    return opened((folder / "jobs" / f"{name}.json").read_bytes())["result"]


def test_baselines_get_the_time_of_a_specification(of_task, tmp_path, monkeypatch):
    """Steps of 30 and 10 ms are 20 ms on average: 40 of them are 800 ms, and 200 steps of 4 ms, and 1600 of 0.5 ms."""
    done = of_task("classify")
    assert list(job(done.folder, "speed")) == [*done.config.specs, "baseline linear", "baseline lstm"]
    for kind in ("linear", "lstm"):
        found = [job(done.folder, f"baseline-{kind}-{seed}") for seed in (0, 1)]
        assert found[0]["steps"] == found[1]["steps"] > 0
    asked = []

    def trained(jobs, *, threads):
        asked.extend((job.model.kind, job.training.steps, job.training.seed) for job in jobs)
        return [job(done.folder, "baseline-linear-0")]

    names = (*done.config.specs, "baseline linear", "baseline lstm")  # `linear` is a mechanism too
    speeds = {name: {"seconds": took} for name, took in zip(names, (0.03, 0.01, 0.0005, 0.004), strict=True)}
    monkeypatch.setattr(references, "run_apart", trained)
    rows = references.trained(done.config, tmp_path, 40, speeds, lambda name, make, label: make())
    assert [row["name"] for row in rows] == ["linear", "lstm"]
    assert asked == [("linear", 1600, 0), ("linear", 1600, 1), ("lstm", 200, 0), ("lstm", 200, 1)]


def test_a_comparison_interrupted_among_its_baselines_goes_on(of_task, tmp_path, monkeypatch):
    import shutil

    done = of_task("classify")
    out = shutil.copytree(done.folder, tmp_path / "out")
    for name in ("baseline-linear-0", "baseline-lstm-1"):
        (out / "jobs" / f"{name}.json").unlink()
        shutil.rmtree(out / "runs" / name)
    kept = {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    asked = []

    def once(jobs, *, threads, each=lambda result: None):
        asked.extend(job.run.rpartition("/")[2] for job in jobs)
        return [job(done.folder, asked[-1])]

    monkeypatch.setattr(references, "run_apart", once)
    found = compare(done.config, out)
    assert asked == ["baseline-linear-0", "baseline-lstm-1"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert found["baselines"] == done.results["baselines"]


def test_a_task_that_a_specification_cannot_do(of_task, tmp_path):
    config = of_task("mlm").config
    for task in ("lm", "recall"):
        with pytest.raises(UnsupportedError) as caught:
            compare(replace(config, task=task), tmp_path / "out")
        assert str(caught.value) == (
            f"linformer(rank=4) / uniform cannot do {task}: linformer(rank=4) does not support causal=True\n"
            "all of them can do --task mlm or classify"
        )
    assert not (tmp_path / "out").exists()


def test_data_that_is_missing_or_too_small(of_task, tmp_path):
    config = of_task("classify").config
    missing = replace(config, classification=replace(config.classification, data=str(tmp_path / "none.npz")))
    with pytest.raises(DataError, match=r"there is no data '.*none.npz': no such file"):
        compare(missing, tmp_path / "out")
    with pytest.raises(DataError, match=r"there are 96 training examples, fewer than one batch of 97; .*--classific"):
        compare(replace(config, classification_batch_size=97), tmp_path / "out")
    with pytest.raises(DataError, match=r"fewer than one batch of 9999; .*--masked-batch-size"):
        compare(replace(of_task("mlm").config, masked_batch_size=9999), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_on_the_command_line_asks_for_classes():
    import tyro

    from regard_lab.cli.compare import Options

    def given(*words: str):
        return configured(tyro.cli(Options, args=words, config=(tyro.conf.FlagCreatePairsOff,)))

    found = given("softmax", "--data", "my.npz", "--classification.patch", "7", "--baselines", "mlp")
    assert (found.task, found.classification.data, found.classification.patch) == ("classify", "my.npz", 7)
    assert found.baselines == ("mlp",)
    assert given("softmax", "--baselines").baselines == ()
    with pytest.raises(ConfigError, match="--data is for --task classify, and --task mlm reads none of it"):
        given("softmax", "--data", "my.npz", "--task", "mlm")
