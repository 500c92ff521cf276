"""The plan of a comparison: what a few steps of every specification take, and what of it all fits into the budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.core.errors import ConfigError
from regard_lab.benchmark import jobs
from regard_lab.benchmark.budget import Budget
from regard_lab.benchmark.config import CompareConfig, seconds
from regard_lab.benchmark.language import sentence
from regard_lab.benchmark.measures import TASKS, Measure
from regard_lab.benchmark.quality import STEP_TURNS, STEP_TURNS_SECONDS, run_apart
from regard_lab.benchmark.results import Expected

PROBE_STEPS = 3
"""steps timed for the plan, at most"""
FULL = 0.92
"""of a budget is planned for; the rest is for a machine that becomes slower"""
PROBING = 0.3
"""of a budget, at most, before a comparison is refused that could not even be planned"""
COST_SHARE, SPEED_SHARE = 0.15, 0.06
"""of a budget, for timings"""
FEW_EXAMPLES = 100
"""validation windows or sequences where time is short"""
WRITING = 1.5
"""seconds to write checkpoints and so on in a training, and to write the report"""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Probe:
    """Seconds of one specification: to build model and data, of a training step, and to evaluate an example."""

    setup: float
    step: float
    example: float
    peak_bytes: int
    untrusted: str | None


@dataclass(frozen=True)
class Form:
    """A comparison as it was asked for, or a smaller one: which measures, and what of the configuration changes."""

    config: CompareConfig
    measures: tuple[Measure, ...]


def forms(config: CompareConfig, task: str) -> Iterator[Form]:
    """The comparison, and what it can be reduced to, one after the other."""
    asked = chosen(config, task)
    yield Form(config, asked)
    name = "classification_evaluate_examples" if task == "classify" else "evaluate_examples"
    if getattr(config, name) > FEW_EXAMPLES or not getattr(config, name):
        config = replace(config, **{name: FEW_EXAMPLES})
        yield Form(config, asked)
    if len(asked) > 1:
        yield Form(config, asked[:1])


def chosen(config: CompareConfig, task: str) -> tuple[Measure, ...]:
    """The measures that a configuration asks for: without steps none is taken."""
    return tuple(measure for measure in TASKS[task] if measure.option(config, "steps"))


def probe(
    config: CompareConfig,
    out: Path,
    measures: tuple[Measure, ...],
    beside: tuple[str, ...],
    budget: Budget,
    tell: Tell,
) -> tuple[dict[tuple[str, str], Probe], float]:
    """What a few steps of everything take, by specification and measure, and what a process takes to start.

    Raises:
        ConfigError: the budget would be used up by this alone.
    """
    names = [(spec, measure.name) for measure in measures for spec in config.specs]
    limit = None if budget.seconds is None else PROBING * budget.seconds / len(names)
    described = [
        replace(jobs.job(config, out, measure, spec, 0, 1), steps_only=PROBE_STEPS, seconds=limit)
        for measure in measures
        for spec in config.specs
    ]
    tell(f"planning: up to {PROBE_STEPS} steps of every specification")
    began, found = budget.spent, list[dict[str, Any]]()

    def each(result: dict[str, Any]) -> None:
        found.append(result)
        spec, name = names[len(found) - 1]
        shown = f"{spec}, {name}: {1000 * result['seconds']:.0f} ms a step"
        tell(f"planning: {shown} ({len(found)} of {len(names)})" + (f"; {why}" if (why := result["untrusted"]) else ""))
        if budget.seconds is not None and len(found) < len(names) and budget.spent > PROBING * budget.seconds:
            like = [*found, *[max(found, key=lambda one: one["seconds"])] * (len(names) - len(found))]
            start = budget.spent - began - sum(one["total"] for one in found)
            form = Form(config, measures[:1])  # nothing smaller there is
            raise TooShort(config, Costs(form, _probes(names, like), start, beside))

    results = run_apart(described, threads=config.threads, each=each)
    own = sum(result["total"] for result in results)
    return _probes(names, results), max(budget.spent - began - own, 0.0)


def _probes(names: Sequence[tuple[str, str]], results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Probe]:
    return {
        name: Probe(one["setup"], one["seconds"], one["example_seconds"], one["peak_bytes"], one["untrusted"])
        for name, one in zip(names, results, strict=True)
    }


@dataclass(frozen=True)
class Costs:
    """What the jobs of a comparison take.

    Args:
        form: of the comparison.
        probes: by specification and measure.
        start: seconds that a process takes to start.
        beside: baselines that are trained, each for as long as a specification.
    """

    form: Form
    probes: dict[tuple[str, str], Probe]
    start: float
    beside: tuple[str, ...]

    def all_steps(self, measure: Measure) -> float:
        """Seconds that one step of every training takes together."""
        config = self.form.config
        total = sum(self.probes[spec, measure.name].step for spec in config.specs) * config.seeds
        return total * (1 + self._baselines(measure) / len(config.specs))

    def _baselines(self, measure: Measure) -> int:
        return len(self.beside) if measure is self.form.measures[0] else 0

    def after(self, spec: str, measure: Measure) -> float:
        """Seconds of a training after its last step."""
        evaluated = measure.evaluated(self.form.config) or 1000
        return (evaluated + 32) * self.probes[spec, measure.name].example + WRITING

    def _training(self, spec: str, measure: Measure, steps: int) -> float:
        probe = self.probes[spec, measure.name]
        return probe.setup + steps * probe.step + self.after(spec, measure)

    def planning(self) -> float:
        """Seconds that the plan takes: few steps of everything."""
        known = [one for (spec, _), one in self.probes.items() if spec in self.form.config.specs]
        return self.start + sum(one.setup + (PROBE_STEPS + 1) * one.step + 8 * one.example for one in known)

    def fits(self, steps: dict[str, int], spent: float, whole: float) -> bool:
        """Whether so many steps fit into a budget of which something is spent."""
        return spent + sum(self.jobs(steps, whole).values()) <= FULL * whole

    def jobs(self, steps: dict[str, int], seconds: float | None) -> dict[str, float]:
        """Seconds of every job, by its name. Trainings of one specification share a process, which has to start once.

        Args:
            steps: of every measure.
            seconds: the budget.
        """
        config, measures = self.form.config, self.form.measures
        first, found = measures[0], dict[str, float]()
        for seed in range(config.seeds):
            for spec in config.specs:
                for measure in measures:
                    start = self.start if measure is first else 0.0
                    found[training(spec, measure.name, seed)] = start + self._training(
                        spec, measure, steps[measure.name]
                    )
        mean = sum(found[training(spec, first.name, 0)] for spec in config.specs) / len(config.specs)
        found |= {f"baseline-{kind}-{seed}": mean for kind in self.beside for seed in range(config.seeds)}
        turn = self.all_steps(first) / config.seeds
        setup = sum(self.probes[spec, first.name].setup for spec in config.specs)
        most = STEP_TURNS_SECONDS if seconds is None else SPEED_SHARE * seconds
        found["speed"] = self.start + setup + turn + min(STEP_TURNS * turn, max(most, turn))
        if seconds is not None:
            found["cost"] = self.start + COST_SHARE * seconds
        found["baselines"] = (
            WRITING + 2e-6 * steps[first.name] * first.option(config, "batch_size") * config.text.length
        )
        found["report"] = WRITING
        return found


def training(spec: str, measure: str, seed: int) -> str:
    """The name of a job."""
    return f"{spec}, {measure}, {seed}"


def planned(
    config: CompareConfig, task: str, out: Path, beside: tuple[str, ...], budget: Budget, tell: Tell
) -> Expected:
    """How a comparison fits its budget: fewer steps, fewer validation examples, no recall; in this order,
    and nothing that fits is made smaller.

    Args:
        config: of the comparison.
        task: of the comparison.
        out: its folder.
        beside: baselines that are trained.
        budget: what is left of it.
        tell: called with lines about the progress.

    Raises:
        ConfigError: nothing fits; the message says what would.
    """
    asked = chosen(config, task)
    probes, start = probe(config, out, asked, beside, budget, tell)
    peak = max(one.peak_bytes for one in probes.values())
    if budget.seconds is None:
        costs = Costs(Form(config, asked), probes, start, beside)
        steps = {measure.name: measure.option(config, "steps") for measure in asked}
        total = sum(costs.jobs(steps, None).values()) / (1 - COST_SHARE)
        return Expected(steps, total / 60, peak, start)
    least: Costs | None = None
    for form in forms(config, task):
        costs = least = Costs(form, probes, start, beside)
        steps = _steps(costs, budget)
        if all(steps[measure.name] >= measure.least_steps for measure in form.measures):
            found = costs.jobs(steps, budget.seconds)
            total = budget.spent + sum(found.values())
            after = {m.name: max(costs.after(spec, m) for spec in config.specs) for m in form.measures}
            return Expected(steps, total / 60, peak, start, found, after, changes(config, form))
    assert least is not None
    raise TooShort(config, least)


def _steps(costs: Costs, budget: Budget) -> dict[str, int]:
    """The steps that the budget leaves time for, shared between measures."""
    assert budget.seconds is not None
    measures = costs.form.measures
    rest = FULL * budget.seconds - budget.spent
    rest -= sum(costs.jobs({measure.name: 0 for measure in measures}, budget.seconds).values())
    whole = sum(measure.share for measure in measures)
    return {m.name: int(m.share / whole * max(rest, 0.0) / costs.all_steps(m)) for m in measures}


class TooShort(ConfigError):
    """A budget into which nothing fits. needed: one that is enough."""

    def __init__(self, config: CompareConfig, costs: Costs) -> None:
        self.needed = rounded(1.5 * _needed(costs, config.specs))
        super().__init__(_refusal(config, costs))


def _refusal(config: CompareConfig, costs: Costs) -> str:
    """What does not fit, and what would."""
    assert config.budget is not None
    measures, specs = costs.form.measures, config.specs
    given = seconds(config.budget)
    fitting = next(
        (specs[:count] for count in range(len(specs) - 1, 0, -1) if _needed(costs, specs[:count]) <= given), ()
    )
    ways = [f"--budget {rounded(_needed(costs, specs))}"]
    if fitting:
        ways.append(f"fewer specifications ({', '.join(fitting)} fit)")
    least = " and ".join(f"{measure.least_steps} steps on {measure.subject}" for measure in measures)
    return (
        f"--budget {config.budget} is too little for {len(specs)} specifications x {config.seeds} seeds, even with no "
        f"more than {least}. What fits: {', or '.join(ways)}; or smaller --shape.dim and --text.length"
        + _busy([asdict(probe) for probe in costs.probes.values()])
    )


def _needed(costs: Costs, specs: tuple[str, ...]) -> float:
    """The seconds of a budget that some specifications fit into, planning included."""
    costs = replace(costs, form=replace(costs.form, config=replace(costs.form.config, specs=specs)))
    steps = {measure.name: measure.least_steps for measure in costs.form.measures}
    whole = costs.planning()
    while not costs.fits(steps, costs.planning(), whole) or costs.planning() > PROBING * whole:
        whole *= 1.1
    return whole


def _busy(probes: Sequence[Mapping[str, Any]]) -> str:
    """Why probes say little, in a message."""
    reason = next((probe["untrusted"] for probe in probes if probe["untrusted"]), None)
    return "" if reason is None else f", or a quiet machine. Now {reason}"


def rounded(seconds: float) -> str:
    """A duration to write: seconds up to two minutes, then minutes.

    Example:
        >>> rounded(41.2), rounded(200)
        ('45s', '4m')
    """
    return f"{-(-int(seconds + 1) // 5) * 5}s" if seconds <= 120 else f"{int(seconds // 60) + 1}m"


def changes(config: CompareConfig, form: Form) -> dict[str, Any]:
    """What a form changes of the configuration: setting -> value."""
    before = vars(config)
    return {name: value for name, value in vars(form.config).items() if value != before[name]}


def fitted(config: CompareConfig, expected: Expected, task: str) -> CompareConfig:
    """The configuration that a plan made of the one that was asked for."""
    left_out = {f"{m.name}_steps": 0 for m in chosen(config, task) if m.name not in expected.steps}
    return replace(config, **expected.changes, **left_out)


def told(config: CompareConfig, expected: Expected, task: str) -> list[dict[str, Any]]:
    """What was made smaller, in sentences."""
    found: list[dict[str, Any]] = []
    if "recall" in {measure.name for measure in chosen(config, task)} - set(expected.steps):
        text = "recall was left out: the budget of {budget} has no time for enough of its steps"
        found.append(sentence(text, budget=config.budget))
    if {"evaluate_examples", "classification_evaluate_examples"} & set(expected.changes):
        text = "{count} validation examples were measured to fit the budget of {budget}"
        found.append(sentence(text, count=FEW_EXAMPLES, budget=config.budget))
    return found
