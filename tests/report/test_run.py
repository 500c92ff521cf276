"""What a report measures of runs, one of each kind, against single calls of their models."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.core.errors import ConfigError
from regard_lab.benchmark.decisions import observe
from regard_lab.benchmark.depth_costs import leaving_after, token_operations
from regard_lab.report import run as module
from regard_lab.training.batches import collate
from tests.benchmark.test_decisions import TASK, model_of
from tests.report.test_run_charts import results

EXAMPLE = collate(TASK.examples("valid"), [0], TASK.vocab_size, num_targets=TASK.num_targets)
CALIBRATED = {"thresholds": (0.9, 0.04, 0.02), "certified": (0.9,)}


def run(path: Path, data: str = "these", **options: object) -> Any:
    """A trained model, as far as a report looks at it."""
    config = SimpleNamespace(
        task=SimpleNamespace(name="recall"), training=SimpleNamespace(seed=0), model=SimpleNamespace()
    )
    return SimpleNamespace(
        path=path, data=data, model=model_of(**options), config=config, step=7, tokenizer=None, stop_tokens=()
    )


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measures runs that are given by the options of their models."""

    def measure(models: dict[str, dict[str, Any]], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        runs = {name: run(tmp_path / name, **given) for name, given in models.items()}
        tasks = [one.config.task for one in runs.values()]
        for one in runs.values():
            one.config.task = tasks[0]
        monkeypatch.setattr(module, "load", lambda path, **_: runs[path.name])
        monkeypatch.setattr(module, "build_task", lambda *_, **__: TASK)
        monkeypatch.setattr(module, "alone", lambda config, task: task)
        return module.measure([one.path for one in runs.values()], limit=4, **options), runs

    return measure


def test_exits_are_measured_at_every_threshold_of_their_calibration(measured, monkeypatch, tmp_path):
    """Those that were not certified too; and the model goes on with the one that it is used with."""

    def install(model, folder):
        model.depth.threshold = 0.04
        return {"calibrated": CALIBRATED, "heads": "trained"}

    (tmp_path / "early" / "exits").mkdir(parents=True)
    monkeypatch.setattr(module.exits, "install", install)
    found, runs = measured({"early": {"depth": "early_exit", "layers": 3}, "plain": {}})
    early, plain = found["runs"]
    model = runs["early"].model
    assert model.depth.threshold == 0.04
    assert [at["threshold"] for at in early["exits"]] == list(CALIBRATED["thresholds"])
    assert early["used"] == early["exits"][1] != early["exits"][2]
    seen = observe(model, TASK, limit=4)
    assert early["used"]["nats_per_token"] == pytest.approx(seen.total.nats / seen.total.tokens)
    deciding, fixed = token_operations(model, EXAMPLE)
    assert (early["operations"], early["fixed_operations"]) == (deciding, fixed)
    assert plain["used"]["depth"] == 2
    assert plain["used"]["operations"] == token_operations(runs["plain"].model, EXAMPLE)[0][0]
    assert (early["calibration"]["heads"], plain["calibration"]) == ("trained", None)


def test_a_step_of_ponder_is_all_blocks(measured):
    found, runs = measured({"ponder": {"depth": "universal(steps=3, epsilon=0.3)"}})
    (ponder,) = found["runs"]
    assert (ponder["unit"], ponder["most"]) == ("steps", 3)
    assert [at["depth"] for at in ponder["fixed"]] == [2, 4, 6]
    with leaving_after(runs["ponder"].model, 2):
        assert observe(runs["ponder"].model, TASK, limit=4).taken == ponder["fixed"][1]["taken"]
    steps = sum(number * count for number, count in enumerate(ponder["used"]["taken"], 1))
    assert ponder["used"]["depth"] == pytest.approx(2 * steps / found["tokens"])
    both, _ = measured(
        {"ponder": {"depth": "universal(steps=3)"}, "all": {"depth": "universal(steps=4, halting=False)"}}
    )
    assert (both["runs"][1]["most"], both["runs"][1]["used"]["depth"]) == (None, 8)


def test_a_threshold_is_that_of_the_first_run(measured):
    found, _ = measured({"early": {"depth": "early_exit", "layers": 3}, "plain": {}}, threshold=0.03)
    assert [one["used"]["threshold"] for one in found["runs"]] == [0.03, None]


def test_runs_on_other_data_are_refused(measured):
    """Also where their tasks are told alike, as of a file that was changed in between."""
    early = {"depth": "early_exit", "layers": 3}
    with pytest.raises(ConfigError, match="late was trained on other data"):
        measured({"early": early, "late": {**early, "data": "others"}})


def test_the_summary_and_its_notes():
    found = results()
    early, plain = found["runs"]
    early["step"] = 8
    assert module.columns(found)[:6] == ("run", "depth", "parameters", "step", "mean blocks", "operations of a token")
    first = ("</script>", "early_exit", "1,234", "8", "1.50", "2,950,000", "3.5000", "5.0%")
    assert module.rows(found)[0] == first
    early["heads"] = "light"
    assert module.rows(found)[0][1] == "early_exit, exits: light"
    assert module.notes(found) == ["Validation data of the runs: 99 targets of 4 examples, evenly spaced."]
    assert module.notes({**found, "limit": 0}) == ["Validation data of the runs: 99 targets."]
    early["used"]["threshold"] = plain["used"]["threshold"] = 1.0
    plain["used"]["bits_per_byte"] = None
    _, certified, trained = module.notes(found)
    assert "nothing was certified. regard calibrate finds a threshold" in certified
    assert "it was trained to be used so. regard report --threshold" in trained
