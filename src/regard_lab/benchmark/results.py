"""The results of a comparison as plain data: everything measured, everything concluded, and how to repeat it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from regard import __version__
from regard_lab.benchmark import board, sweep
from regard_lab.benchmark.advice import advise
from regard_lab.benchmark.board import Baseline, Board
from regard_lab.benchmark.config import FORMAT, MARK, CompareConfig
from regard_lab.benchmark.language import sentence
from regard_lab.benchmark.measures import Measure, Metric, taken
from regard_lab.benchmark.plain import plain
from regard_lab.benchmark.quality import MIN_UNITS
from regard_lab.benchmark.recorded import machine, now
from regard_lab.benchmark.references import timed_as
from regard_lab.benchmark.verdict import Estimate, Sample, estimates, ties

Quality = Mapping[tuple[str, int, str], dict[str, Any]]
"""(specification, seed, name of a measure) -> what its training found"""
Speeds = Mapping[str, Mapping[str, Any]]
"""name of a specification or baseline -> the timing of its training steps, see `quality.step_timings`"""


@dataclass(frozen=True)
class Expected:
    """The expected cost of a comparison, from a few steps of every specification.

    Attributes:
        steps: by the name of a measure.
        minutes: for everything.
        peak_bytes: the most memory of a training.
        start: seconds that a process takes to start.
        seconds: by the name of a job, where there is a budget.
        after: of these the seconds that a training takes once its last step is done, by the name of a measure.
        changes: settings that the budget made smaller, by name.
    """

    steps: dict[str, int]
    minutes: float
    peak_bytes: int
    start: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)


def assemble(
    config: CompareConfig,
    task: str,
    expected: Expected,
    quality: Quality,
    speeds: Speeds,
    costs: Sequence[dict[str, Any]],
    references: Sequence[dict[str, Any]],
    notes: Sequence[dict[str, Any]] = (),
    diverged: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Everything measured and everything concluded, as plain data. Nothing is concluded from a timing that cannot be
    trusted, or from trainings that were stopped where others were not; specifications that diverged are left out.
    """
    asked, diverged = config, diverged or {}
    config = replace(config, specs=tuple(spec for spec in config.specs if spec not in diverged))
    measures = taken(task, expected.steps)
    first = measures[0]
    samples = {measure.name: _samples(config, quality, measure.name, measure.metric) for measure in measures}
    stopped = _stopped(config, expected, quality, measures)
    whole = [spec for spec in config.specs if spec not in stopped] or list(config.specs)
    tied = {
        measure.name: ties(
            {spec: samples[measure.name][spec] for spec in whole}, larger_is_better=measure.larger_is_better
        )
        for measure in measures
    }
    values = {measure.name: estimates(samples[measure.name]) for measure in measures}
    measured = {spec: _measured(config, spec, measures, quality, values) for spec in config.specs}
    rows = [sweep.Row(**row) for row in costs]
    entries = [
        {
            **_cost(config, spec, rows),
            **measured[spec],
            first.name: {**measured[spec][first.name], **_speed(speeds[spec])},
        }
        for spec in config.specs
    ]
    beside = [_reference(reference, first, speeds) for reference in references]
    chance = 2 / config.recall.vocab_size if "recall" in tied else None
    unit = quality[config.specs[0], 0, first.name]["unit"]
    drawn = Board(
        measures=measures,
        samples={name: {spec: found[spec] for spec in whole} for name, found in samples.items()},
        entries=entries,
        baselines={
            one["name"]: Baseline(_sample(one["tables"], first.metric), counting="jobs" not in one)
            for one in references
        },
        unit=unit,
        chance=chance or 0.0,
    )
    findings, advice = advise(drawn)
    return {
        "format": FORMAT,
        "version": __version__,
        "created": now(),
        "task": task,
        "config": json.loads(json.dumps(asdict(asked))),
        "expected": asdict(expected),
        "environment": machine(config.threads),
        "entries": entries,
        "baselines": beside,
        "ties": {name: {"best": best, "specs": names} for name, (best, names) in tied.items()},
        "differences": plain(board.told(drawn)),
        "unit": unit,
        "recall_chance": chance,
        "notes": plain([*notes, *diverged.values(), *stopped.values(), *_doubts(entries, beside, first)]),
        "advice": plain([asdict(one) for one in findings]),
        "recommendation": plain(asdict(advice)),
        "reproduce": reproduce(asked, expected),
    }


def reproduce(config: CompareConfig, expected: Expected) -> str:
    """The command that repeats a comparison: what differs from the defaults, with steps instead of a budget."""
    steps: dict[str, Any] = {f"{name}_steps": count for name, count in expected.steps.items()}
    fixed = replace(config, budget=None, **steps)
    words = ["regard", "compare", *([] if config.specs == CompareConfig().specs else map(shlex.quote, config.specs))]
    words += _flags("--", asdict(fixed), asdict(CompareConfig()))
    return " ".join(words)


def _flags(prefix: str, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        if name == "specs" or (value == defaults[name] and name != "threads"):  # whose default is the machine's
            continue
        flag = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, dict):
            words += _flags(f"{prefix}{name}.", value, defaults[name])
        elif isinstance(value, tuple | list):
            words += [flag, *(shlex.quote(str(one)) for one in value)]
        else:
            words.append(shlex.quote(f"{flag}={value}"))  # one word: the value may begin with a dash
    return words


def _sample(tables: Sequence[Mapping[str, Any]], metric: Metric) -> Sample:
    """One table for each seed."""
    if metric == "bits_per_byte":
        top = np.array([table["nats"] for table in tables]) / np.log(2)
        return Sample(top, np.array([table["bytes"] for table in tables], dtype=float))
    return Sample(
        np.array([table["correct"] for table in tables], dtype=float),
        np.array([table["tokens"] for table in tables], dtype=float),
    )


def _samples(config: CompareConfig, quality: Quality, name: str, metric: Metric) -> dict[str, Sample]:
    return {
        spec: _sample([quality[spec, seed, name]["documents"] for seed in range(config.seeds)], metric)
        for spec in config.specs
    }


def _measured(
    config: CompareConfig,
    spec: str,
    measures: Sequence[Measure],
    quality: Quality,
    values: Mapping[str, Mapping[str, Estimate]],
) -> dict[str, Any]:
    """The findings of a specification's trainings: for each measure the value with its interval, and that of each seed;
    for the first one also speed and memory, and what its task shows besides.
    """
    entry: dict[str, Any] = {}
    for measure in measures:
        trainings = [quality[spec, seed, measure.name] for seed in range(config.seeds)]
        entry[measure.name] = {
            measure.metric: asdict(values[measure.name][spec]),
            "seeds": [_sample([one["documents"]], measure.metric).value for one in trainings],
            "curves": [one["curve"] for one in trainings],
        }
        if measure is measures[0]:
            entry[measure.name]["peak_bytes"] = max(one["peak_bytes"] for one in trainings)
            if measure.name == "masked":
                entry[measure.name]["accuracy"] = _guessed([one["documents"] for one in trainings])
            entry["parameters"] = trainings[0]["parameters"]
    return entry


def _speed(timing: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens that a training reads in a second, with the interval, from steps that were timed in turns."""
    positions = timing["positions"]
    beside = {"low": positions / timing["high"], "high": positions / timing["low"]}
    kept = {name: timing[name] for name in ("turns", "untrusted")}
    return {"tokens_per_second": positions / timing["seconds"], "speed": {**beside, **kept}}


def _stopped(
    config: CompareConfig, expected: Expected, quality: Quality, measures: Sequence[Measure]
) -> dict[str, dict[str, Any]]:
    """Specifications of which a training had to stop before its last step, and what is to be said of them."""
    found: dict[str, dict[str, Any]] = {}
    for spec in config.specs:
        for measure in measures:
            steps = [quality[spec, seed, measure.name]["steps"] for seed in range(config.seeds)]
            if min(steps) < (planned := expected.steps[measure.name]):
                found[spec] = sentence(
                    "{spec} was stopped after {steps} of {planned} steps on {subject}, when its share of the budget "
                    "was used up: what it reached cannot be compared with the others",
                    spec=spec,
                    steps=min(steps),
                    planned=planned,
                    subject=sentence(measure.subject),
                )
    return found


def _doubts(
    entries: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]], first: Measure
) -> list[dict[str, Any]]:
    """What is to be said of timings that cannot be trusted."""
    reasons = [entry[first.name]["speed"]["untrusted"] for entry in entries]
    reasons += [row["speed"]["untrusted"] for row in baselines if row["speed"]]
    reasons += [row["untrusted"] for entry in entries for row in (*entry["cost"], *entry["decode"])]
    found = [reason for reason in reasons if reason]
    if not found:
        return []
    return [
        sentence(
            "{count} of {total} timings, marked {mark}, cannot be trusted and nothing is concluded from them: {reason}"
            ". Compare again on a quiet machine",
            count=len(found),
            total=len(reasons),
            mark=MARK,
            reason=found[0],
        )
    ]


def _guessed(tables: Sequence[Mapping[str, Any]]) -> float:
    """The share of hidden tokens that was guessed."""
    return _sample(tables, "accuracy").value


def _cost(config: CompareConfig, spec: str, rows: Sequence[sweep.Row]) -> dict[str, Any]:
    """The cost of a specification's attention, over length."""
    layers = config.layers(spec)
    stacked = _stacked(spec, layers, rows)
    exact = _stacked("softmax", ("softmax",) * len(layers), rows)
    together = [*stacked, *(replace(row, spec="exact") for row in exact)]
    return {
        "spec": spec,
        "layers": list(layers),
        "cost": [
            {name: getattr(row, name) for name in ("length", "kind", "seconds", "low", "high", "untrusted")}
            for row in stacked
            if row.kind != "decode"
        ],
        "decode": [
            {
                "length": row.length,
                "microseconds": row.seconds * 1e6,
                "low": row.low * 1e6,
                "high": row.high * 1e6,
                "untrusted": row.untrusted,
                "state_bytes": row.state_bytes,
            }
            for row in stacked
            if row.kind == "decode"
        ],
        "crossover": {
            kind: None if layers == ("softmax",) * len(layers) else sweep.crossover(together, spec, "exact", kind)
            for kind in ("forward", "both")
        },
    }


def _stacked(name: str, layers: Sequence[str], rows: Sequence[sweep.Row]) -> list[sweep.Row]:
    """The attention cost of a stack of layers: the sum over its layers, at the lengths that all of them reached."""
    by_key = {(row.spec, row.length, row.kind): row for row in rows}
    stacked = []
    for length, kind in dict.fromkeys((row.length, row.kind) for row in rows):
        parts = [by_key.get((layer, length, kind)) for layer in layers]
        here = [part for part in parts if part is not None]
        if len(here) == len(parts):
            sizes = [part.state_bytes for part in here if part.state_bytes is not None]
            stacked.append(
                sweep.Row(
                    name,
                    length,
                    kind,
                    *(sum(getattr(part, field) for part in here) for field in ("seconds", "low", "high")),
                    state_bytes=sum(sizes) if sizes else None,
                    turns=min(part.turns for part in here),
                    untrusted=next((part.untrusted for part in here if part.untrusted), None),
                )
            )
    return stacked


def _reference(reference: Mapping[str, Any], measure: Measure, speeds: Speeds) -> dict[str, Any]:
    """A row beside the specifications. What only counts is not trained; an interval is given only where there are
    enough documents to resample.
    """
    sample = _sample(reference["tables"], measure.metric)
    if sample.top.shape[1] < MIN_UNITS:
        value = {"middle": sample.value, "low": None, "high": None}
    else:
        value = asdict(estimates({"it": sample})["it"])
    trainings = reference.get("jobs")
    row = {
        "name": reference["name"],
        measure.metric: value,
        "seeds": [_sample([table], measure.metric).value for table in reference["tables"]],
        "parameters": trainings[0]["parameters"] if trainings else None,
    }
    if measure.name == "masked":
        row["accuracy"] = _guessed(reference["tables"])
    if trainings is None:
        return row | dict.fromkeys(("tokens_per_second", "speed", "peak_bytes"))
    peak = {"peak_bytes": max(one["peak_bytes"] for one in trainings)}
    return row | peak | _speed(speeds[timed_as(reference["name"])])
