"""A budget is kept: a comparison is made smaller until it fits, or refused, and jobs share what is left."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.core.errors import ConfigError
from regard_lab.benchmark import comparison, plan, references, sweep, trainings
from regard_lab.benchmark.budget import Budget
from regard_lab.benchmark.comparison import compare
from regard_lab.benchmark.config import CompareConfig, ShapeConfig, quick, seconds
from regard_lab.benchmark.measures import CLASSIFICATION, RECALL, TASKS, TEXT, taken
from regard_lab.benchmark.results import Expected, reproduce
from regard_lab.report.summary import notes
from regard_lab.tasks.config import RecallConfig, TextConfig


@dataclass
class Machine:
    """A stand-in that does no work: the seconds of everything that a comparison runs in processes of its own.

    Args:
        step: seconds of a training step on text; of recall half as many, and half of that where sequences are half as
            long.
        slower: times as slow from so many trainings on.
    """

    step: float = 0.02
    start: float = 2.0
    setup: float = 0.3
    example: float = 0.003
    slower: tuple[int, float] = (10**6, 1.0)
    now: float = 1000.0
    trained: list[tuple[str, int, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def spend(self, duration: float) -> None:
        after, times = self.slower
        self.now += duration * (times if len(self.trained) >= after else 1.0)

    def of(self, job: Any) -> float:
        return self.step * (job.task_config.length / 256 if job.task == "recall" else 1.0)

    def run_apart(self, jobs, *, threads, each=lambda result: None):
        self.spend(self.start)
        results = []
        for job in jobs:
            self.spend(self.setup)
            results.append(self.probed(job) if job.steps_only else self.done(job))
            each(results[-1])
        return results

    def probed(self, job: Any) -> dict[str, Any]:
        self.spend(4 * self.of(job) + 4 * self.example)
        total = self.setup + 4 * self.of(job) + 4 * self.example
        own = {"setup": self.setup, "seconds": self.of(job), "example_seconds": self.example, "total": total}
        return {**own, "peak_bytes": 2**30, "untrusted": None}

    def done(self, job: Any) -> dict[str, Any]:
        began, steps = self.now - self.setup, 0
        while steps < job.training.steps and (job.seconds is None or self.now - began <= job.seconds or not steps):
            self.spend(self.of(job))
            steps += 1
        self.spend((job.evaluate_examples + 32) * self.example + 0.5)
        self.trained.append((job.task, steps, job.training.steps))
        table = {
            "nats": [700.0 + at for at in range(20)],
            "bytes": [100] * 20,
            "correct": [9] * 20,
            "tokens": [10] * 20,
        }
        found = {"documents": table, "unit": "document", "parameters": 7, "length": 128}
        speed = {"steps": steps, "peak_bytes": 2**30, "untrusted": None}
        return {**found, **speed, "curve": []}

    def step_timings(self, jobs, *, threads, budget_seconds):
        self.spend(self.start + sum(self.setup + self.of(job) for job in jobs))
        until = self.now + budget_seconds
        for _ in range(11):
            self.spend(sum(map(self.of, jobs)))
            if self.now > until:
                break
        timing = {"low": self.step, "high": self.step, "turns": 11, "untrusted": None, "positions": 512}
        return [{"seconds": self.of(job), **timing} for job in jobs]

    def sweep(self, config):
        self.spend(self.start)
        self.now += 0.95 * config.seconds * len(config.passes)  # it begins no length that would not be done by then
        row = {"seconds": 0.1, "low": 0.1, "high": 0.1, "state_bytes": None}
        return [sweep.Row(spec, 64, kind, **row) for spec in config.specs for kind in config.passes]

    def counted(self, config, measure, steps):
        self.spend(0.5)
        return []


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Compare on a stand-in machine: its results, what was told, and the seconds that it took."""
    (tmp_path / "text.txt").write_text("".join(f"line {n} of the text\n" for n in range(300)))

    def made(machine: Machine, **changes: Any) -> tuple[dict[str, Any], list[str], float]:
        for module in (plan, trainings, references):
            monkeypatch.setattr(module, "run_apart", machine.run_apart)
        monkeypatch.setattr(comparison, "step_timings", machine.step_timings)
        monkeypatch.setattr(sweep, "sweep", machine.sweep)
        monkeypatch.setattr(references, "counted", machine.counted)
        said: list[str] = []
        began = machine.now
        results = compare(config(tmp_path, **changes), tmp_path / "out", tell=said.append, clock=machine.clock)
        return results, said, machine.now - began

    return made


def config(folder: Path, **changes: Any) -> CompareConfig:
    shape = ShapeConfig(dim=8, layers=1, heads=1)
    text = TextConfig(corpus=str(folder / "text.txt"), cache=str(folder / "cache"), length=16)
    base = CompareConfig(specs=("uniform", "softmax"), shape=shape, recall_shape=shape, text=text, lengths=(64,))
    return replace(base, **{"seeds": 1, **changes})


@pytest.mark.parametrize("budget", ["40s", "60s", "3m", "20m"])
@pytest.mark.parametrize("step", [0.002, 0.02, 0.1])
def test_a_budget_is_kept(run, budget, step):
    machine = Machine(step)
    results, _, took = run(machine, budget=budget)
    assert 0.55 * seconds(budget) <= took <= 1.1 * seconds(budget)
    assert all(steps == planned for _, steps, planned in machine.trained)
    for name, steps in results["expected"]["steps"].items():
        assert steps >= {"text": TEXT, "recall": RECALL}[name].least_steps


@pytest.mark.parametrize("slower", [(0, 2.0), (1, 5.0), (3, 8.0)])
def test_a_budget_is_kept_on_a_machine_that_becomes_slower(run, slower):
    """Jobs stop at the step in which their share is used up; what they reached is not recommended from."""
    machine = Machine(slower=slower)
    results, _, took = run(machine, budget="5m", seeds=2)
    assert took <= 1.1 * 300
    late = [(steps, planned) for _, steps, planned in machine.trained if steps < planned]
    assert late
    assert "was stopped after" in notes(results)[0]


def test_what_is_asked_for_is_not_made_smaller_where_it_fits(run):
    results, _, _ = run(Machine(), budget="10m")
    assert results["expected"]["changes"] == {}
    assert results["notes"] == []
    assert results["config"]["recall"]["num_pairs"] == CompareConfig().recall.num_pairs
    assert set(results["expected"]["steps"]) == {"text", "recall"}


def test_recall_is_left_out_where_there_is_no_time(run):
    results, _, _ = run(Machine(), budget="30s")
    assert set(results["expected"]["steps"]) == {"text"}
    assert "recall" not in results["entries"][0]
    assert "Recall was left out: the budget of 30s has no time for enough of its steps." in notes(results)
    assert "--recall-steps=0" in results["reproduce"]


def test_only_what_a_task_reads_is_made_smaller(tmp_path):
    few = config(tmp_path, evaluate_examples=50)
    assert [plan.changes(few, form) for form in plan.forms(few, "lm")] == [{}, {}]
    many = config(tmp_path, evaluate_examples=0)
    assert [plan.changes(many, form) for form in plan.forms(many, "mlm")] == [{}, {"evaluate_examples": 100}]
    (_, smaller) = plan.forms(many, "classify")
    assert plan.changes(many, smaller) == {"classification_evaluate_examples": 100}


def test_recall_that_was_not_asked_for_is_no_loss(run):
    results, _, _ = run(Machine(), budget="2m", recall_steps=0)
    assert set(results["expected"]["steps"]) == {"text"}
    assert results["notes"] == []


@pytest.mark.parametrize(("step", "budget"), [(0.02, "12s"), (2.0, "60s"), (5.0, "2m")])
def test_what_cannot_fit_is_refused_and_said_what_would(run, tmp_path, step, budget):
    """Before anything is trained; the folder is free for another budget, and the one that is named is enough."""
    machine = Machine(step)
    with pytest.raises(ConfigError, match=r"--budget \d+[sm] is too little") as caught:
        run(machine, budget=budget)
    assert machine.trained == []
    assert not (tmp_path / "out").exists()
    assert machine.now - 1000 <= 0.6 * seconds(budget)
    named = (
        str(caught.value).partition("--budget ")[2].partition("--budget ")[2].partition(",")[0].split()[0].rstrip(";")
    )
    _, _, took = run(Machine(step), budget=named)
    assert took <= 1.1 * seconds(named)


def test_a_quick_comparison_takes_as_long_as_a_slow_machine_needs(run, tmp_path, monkeypatch):
    asked = []

    def measured(config, out, *, tell):
        asked.append(config.budget)
        return run(Machine(2.0), budget=config.budget)[0]

    monkeypatch.setattr(comparison, "compare", measured)
    monkeypatch.setattr("regard_lab.report.html.write", lambda *_: None)
    said = []
    with pytest.raises(ConfigError, match="--budget 60s is too little"):
        regard.compare(budget="60s", out=tmp_path / "out", tell=said.append)
    asked.clear()
    regard.compare(quick=True, out=tmp_path / "out", tell=said.append)
    assert asked[0] == "60s"
    assert said == [f"this machine is slow, or busy: the quick comparison takes {asked[1]} here, not 60s"]


def test_the_specifications_that_would_fit_are_named(run):
    specs = ("uniform", "softmax", "linear", "performer", "cosine", "sigmoid")
    with pytest.raises(ConfigError, match=r"fewer specifications \((.*) fit\)") as caught:
        run(Machine(0.001, start=1.0, setup=0.01), budget="14s", specs=specs)
    named = str(caught.value).partition("specifications (")[2].partition(" fit)")[0].split(", ")
    assert 0 < len(named) < len(specs)
    assert named == list(specs[: len(named)])


def test_as_many_specifications_are_named_as_fit(run):
    """Budgets that grow by a second name one more after the other, up to all but one."""
    specs, found = ("uniform", "softmax", "linear", "performer"), []
    for given in range(14, 60):
        try:
            run(Machine(0.001, start=1.0, setup=0.01), budget=f"{given}s", specs=specs, recall_steps=0)
        except ConfigError as error:
            named = str(error).partition("specifications (")[2].partition(" fit)")[0]
            found.append(len(named.split(", ")) if named else 0)
        else:
            break
    assert found == sorted(found)
    assert found[-1] == len(specs) - 1


def test_without_a_budget_the_steps_are_those_of_the_configuration(run):
    results, said, _ = run(Machine(), text_steps=7, recall_steps=3)
    assert results["expected"]["steps"] == {"text": 7, "recall": 3}
    assert results["expected"]["seconds"] == {}
    assert any(line.startswith("expected: ") for line in said)


def test_shares_are_of_what_is_left():
    machine = Machine()
    budget = Budget(100.0, machine.clock)
    assert budget.share("a") is None
    budget.expect({"a": 30.0, "b": 20.0, "c": 30.0})
    assert budget.share("a") == pytest.approx(50.0)
    machine.now += 50.0
    budget.done("a")
    assert budget.share("b") == pytest.approx(20.0)
    machine.now += 10.0
    budget.done("b")
    budget.expect({"b": 20.0, "c": 60.0})
    assert budget.share("b") == pytest.approx(10.0)
    machine.now += 70.0
    assert budget.share("c") == 0.0


def test_what_a_job_overran_by_is_kept_free():
    machine = Machine()
    budget = Budget(100.0, machine.clock, {"a": 10.0, "b": 40.0})
    assert budget.share("a") == pytest.approx(60.0)
    machine.now += 65.0
    budget.done("a")
    assert budget.share("b") == pytest.approx(35.0 - 5.0)


def test_what_is_left_over_is_given_once():
    """Measures of one model get their shares together."""
    budget = Budget(100.0, Machine().clock)
    budget.expect({"text": 10.0, "recall": 10.0})
    shares = [budget.share("text"), budget.share("recall")]
    assert sum(shares) <= 100.0
    assert shares == [pytest.approx(90.0), pytest.approx(10.0)]


def test_no_budget_no_shares():
    machine = Machine()
    assert Budget(None, machine.clock).share("a") is None


def test_baselines_are_planned_for():
    """Each as long as a specification: two of them beside two specifications leave half of the steps."""
    config = CompareConfig(specs=("uniform", "softmax"), task="classify", budget="10m", seeds=1)
    probes = {(spec, "classification"): plan.Probe(0.1, 0.01, 0.001, 1, None) for spec in config.specs}
    alone, beside = (
        plan.Costs(plan.Form(config, TASKS["classify"]), probes, 1.0, kinds) for kinds in ((), ("linear", "lstm"))
    )
    assert alone.all_steps(CLASSIFICATION) == pytest.approx(0.02)
    assert beside.all_steps(CLASSIFICATION) == pytest.approx(0.04)
    names = set(beside.jobs({"classification": 10}, 600.0)) - set(alone.jobs({"classification": 10}, 600.0))
    assert names == {"baseline-linear-0", "baseline-lstm-0"}


@pytest.mark.parametrize(("text", "found"), [("90s", 90.0), ("30m", 1800.0), ("2h", 7200.0), (" 1.5m ", 90.0)])
def test_durations(text, found):
    assert seconds(text) == found


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("30", "its unit is missing; write 30s, 30m or 30h"),
        ("30 min", "write 30m: a number and s, m or h, and nothing else"),
        ("m30", "write 30m: a number and s, m or h, and nothing else"),
        ("5 m", "write 5m: a number and s, m or h, and nothing else"),
        ("1h30", "write 1h: a number and s, m or h, and nothing else"),
        ("30d", "its unit is missing; write 30s, 30m or 30h"),
        ("soon", "write 90s, 5m or 2h"),
        ("0s", "write 90s, 5m or 2h"),
        ("-5m", "write 5m: a number and s, m or h, and nothing else"),
    ],
)
def test_durations_without_a_unit_are_refused(text, way):
    with pytest.raises(ConfigError) as caught:
        seconds(text)
    assert str(caught.value) == f"cannot read the duration {text!r}: {way}"


def test_quick_changes_only_defaults():
    found = quick(CompareConfig())
    assert (found.budget, found.lengths[-1], found.rounds) == ("60s", 2048, 3)
    assert quick(CompareConfig(lengths=(4096,), rounds=9)).lengths == (4096,)
    with pytest.raises(ConfigError, match="--quick is a budget of 60s, and --budget 5m another; give one"):
        quick(CompareConfig(budget="5m"))


def test_measures_that_were_left_out():
    assert [measure.name for measure in taken("lm", {"text": 5})] == ["text"]
    assert taken("lm", {"text": 5, "recall": 3}) == TASKS["lm"]
    with pytest.raises(ConfigError, match="recall_steps must be at least 1 for --task recall"):
        comparison.check_settings(CompareConfig(recall_steps=0, task="recall"), "recall")


def test_a_plan_says_how_to_repeat_it():
    shorter = replace(CompareConfig(), recall=RecallConfig(vocab_size=64, length=64, num_pairs=4), recall_steps=0)
    assert "--recall-steps=0" in reproduce(shorter, Expected({"text": 9}, 1.0, 1))
