"""The comparison itself: a plan that fits the budget, jobs that survive an interruption, and the results."""

import hashlib
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import __version__
from regard.benchmark import sweep
from regard.benchmark.config import CompareConfig, seconds
from regard.benchmark.quality import Job, run_apart
from regard.benchmark.verdict import Estimate, Sample, Standing, estimates, recommend, ties
from regard.errors import ConfigError, DataError
from regard.models import ModelConfig
from regard.tasks import build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard.training.config import TrainingConfig
from regard.training.data_order import DataOrder
from regard.training.evaluation import measured
from regard.training.files import write_json

PROBES = 3
"""steps timed for the plan"""
TEXT_SHARE, RECALL_SHARE = 0.52, 0.28
"""of a budget; the rest is for timings, baselines, evaluation and the report"""
LEAST_STEPS = 20
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Expected:
    """What a comparison will take, measured on a few steps of every specification."""

    text_steps: int
    recall_steps: int
    minutes: float
    peak_bytes: int


def compare(config: CompareConfig, out: Path, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Measure everything that `config` asks for; results are written to `out/results.json` and returned.

    A comparison that was interrupted goes on where it stopped: finished jobs are read back, unfinished trainings go on
    from their checkpoint.

    Args:
        config: what to compare.
        out: folder of the comparison.
        tell: called with lines for a person: the plan, and each job as it ends.

    Raises:
        ConfigError: `out` holds a comparison with another configuration.
        DataError: a corpus that is too small for the windows and splits asked for.
        ResourceError: a folder that cannot be written.
        UnsupportedError: a mechanism that cannot be causal.
    """
    _claim(config, out)
    _enough(config)
    expected = _plan(config, out, tell)
    quality = {
        (spec, seed, task): _job(config, out, expected, spec, seed, task, tell)
        for seed in range(config.seeds)
        for spec in config.specs
        for task in ("text", "recall")
    }
    costs = {
        name: _kept(
            out,
            f"cost-{name}",
            lambda fixed=fixed: _cost(config, fixed=fixed),
            tell,
            f"cost over length, {name} allocation",
        )
        for name, fixed in (("fixed", True), ("default", False))
    }
    baselines = _kept(out, "baselines", lambda: _baselines(config, expected), tell, "n-gram and xz baselines")
    results = assemble(config, expected, quality, costs, baselines)
    write_json(out / "results.json", results)
    return results


def _claim(config: CompareConfig, out: Path) -> None:
    """Make the folder this comparison's, or refuse one that holds another comparison."""
    own = json.loads(json.dumps(asdict(config)))
    path = out / "comparison.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found != own:
            changed = sorted(name for name in own if own[name] != found.get(name))
            raise ConfigError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}); "
                "choose another --out, or remove that folder"
            )
        return
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty and holds no comparison; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, own)


def _enough(config: CompareConfig) -> None:
    """Refuse data that cannot tell mechanisms apart, before anything is trained."""
    task = build_task(config.text)
    windows = len(task.examples("train"))
    if windows < config.batch_size:
        raise DataError(
            f"{config.text.corpus} has {windows} training windows of {config.text.length} tokens, fewer than one batch "
            f"of {config.batch_size}; use more text, a smaller --text.length or a smaller --batch-size"
        )


def _kept(out: Path, name: str, make: Callable[[], Any], tell: Tell, label: str) -> Any:
    """A job's result, from its file if it ended before."""
    path = out / "jobs" / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    began = time.perf_counter()
    result = json.loads(json.dumps(make()))
    path.parent.mkdir(exist_ok=True)
    write_json(path, result)
    tell(f"{label}: {time.perf_counter() - began:.0f} s")
    return result


def _plan(config: CompareConfig, out: Path, tell: Tell) -> Expected:
    def make() -> dict[str, Any]:
        jobs = [
            replace(_described(config, out, None, spec, 0, task), steps_only=PROBES)
            for task in ("text", "recall")
            for spec in config.specs
        ]
        probes = run_apart(jobs, threads=config.threads)
        half = len(config.specs)
        text, recall = (sum(p["seconds"] for p in part) * config.seeds for part in (probes[:half], probes[half:]))
        text_steps, recall_steps = config.text_steps, config.recall_steps
        if config.budget is not None:
            budget = seconds(config.budget)
            text_steps = max(int(TEXT_SHARE * budget / text), LEAST_STEPS)
            recall_steps = max(int(RECALL_SHARE * budget / recall), LEAST_STEPS)
        total = text * text_steps + recall * recall_steps
        total = total / (TEXT_SHARE + RECALL_SHARE)
        return asdict(Expected(text_steps, recall_steps, total / 60, max(p["peak_bytes"] for p in probes)))

    expected = Expected(**_kept(out, "plan", make, tell, "plan"))
    tell(
        f"expected: {expected.minutes:.1f} minutes, {expected.peak_bytes / 2**30:.1f} GiB of memory; "
        f"{len(config.specs)} specifications x {config.seeds} seeds, {expected.text_steps} steps on text, "
        f"{expected.recall_steps} on recall each"
    )
    return expected


def _described(config: CompareConfig, out: Path, expected: Expected | None, spec: str, seed: int, task: str) -> Job:
    text = task == "text"
    steps = 1 if expected is None else expected.text_steps if text else expected.recall_steps
    task_config = config.text if text else config.recall
    slug = f"{spec.translate({ord(c): '-' for c in ' /()=,+:'})}-{hashlib.sha256(spec.encode()).hexdigest()[:6]}"
    shape = config.shape if text else config.recall_shape
    return Job(
        model=ModelConfig(
            dim=shape.dim,
            layers=shape.layers,
            heads=shape.heads,
            position=shape.position,
            short_convolution=shape.short_convolution,
            mlp=shape.mlp,
            attention=config.layers(spec),
            max_length=task_config.length,
            seed=seed,
        ),
        task="text" if text else "recall",
        task_config=task_config,
        training=TrainingConfig(
            steps=steps,
            batch_size=config.batch_size if text else config.recall_batch_size,
            learning_rate=config.learning_rate if text else config.recall_learning_rate,
            warmup=max(steps // 10, 1),
            log_every=max(steps // 40, 1),
            evaluate_every=steps,
            evaluate_examples=32,
            checkpoint_every=max(steps // 4, 1),
            keep=1,
            seed=seed,
            device="cpu",
            threads=config.threads,
        ),
        run=str(out / "runs" / f"{slug}-{task}-{seed}"),
        evaluate_examples=config.evaluate_examples,
    )


def _job(
    config: CompareConfig, out: Path, expected: Expected, spec: str, seed: int, task: str, tell: Tell
) -> dict[str, Any]:
    job = _described(config, out, expected, spec, seed, task)
    name = Path(job.run).name
    return _kept(out, name, lambda: run_apart([job], threads=config.threads)[0], tell, f"{spec}, {task}, seed {seed}")


def _cost(config: CompareConfig, *, fixed: bool) -> list[dict[str, Any]]:
    plan = sweep.Plan(
        specs=config.mechanisms,
        lengths=config.lengths,
        heads=config.shape.heads,
        key_dim=config.shape.dim // config.shape.heads,
        passes=("forward", "both", "decode") if fixed else ("both",),
        rounds=config.rounds if fixed else max(config.rounds // 2, 1),
        seconds=_sweep_seconds(config, fixed=fixed),
        threads=config.threads,
    )
    return [asdict(row) for row in sweep.sweep(plan, fixed_allocation=fixed)]


def _sweep_seconds(config: CompareConfig, *, fixed: bool) -> float:
    """Most seconds for one pass of a sweep."""
    if config.budget is None:
        return 120.0
    return seconds(config.budget) * (0.04 if fixed else 0.03)


def _baselines(config: CompareConfig, expected: Expected) -> list[dict[str, Any]]:
    """Models without attention: they learn the windows that seed 0 trained on, and code those it is measured on."""
    task = build_task(config.text)
    order = DataOrder(len(task.examples("train")), config.batch_size, 0)
    seen = sorted({index for step in range(expected.text_steps) for index in order.batch(step)})
    coded = measured(len(task.examples("valid")), config.evaluate_examples)
    found = (
        (f"{config.ngram}-gram", ngram_bits_per_byte(task, order=config.ngram, windows=coded, train_windows=seen)),
        ("xz", xz_bits_per_byte(task, windows=coded, train_windows=seen)),
    )
    return [
        {"name": name, "documents": {"bits": bits[sizes > 0].tolist(), "bytes": sizes[sizes > 0].tolist()}}
        for name, (bits, sizes) in found
    ]


def assemble(
    config: CompareConfig,
    expected: Expected,
    quality: dict[tuple[str, int, str], dict[str, Any]],
    costs: dict[str, list[dict[str, Any]]],
    baselines: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Everything measured and everything concluded, as plain data."""
    text = {spec: _sample([quality[spec, s, "text"] for s in range(config.seeds)], "bits") for spec in config.specs}
    recall = {spec: _sample([quality[spec, s, "recall"] for s in range(config.seeds)], "hits") for spec in config.specs}
    bits, hits = estimates(text), estimates(recall)
    best_text, text_ties = ties(text, larger_is_better=False)
    best_recall, recall_ties = ties(recall, larger_is_better=True)
    rows = [sweep.Row(**row) for row in costs["fixed"]]
    entries = [_entry(config, spec, quality, bits[spec], hits[spec], rows, costs["default"]) for spec in config.specs]
    standings = [
        Standing(
            entry["spec"],
            entry["text"]["bits_per_byte"]["middle"],
            entry["recall"]["accuracy"]["middle"],
            entry["text"]["tokens_per_second"],
            entry["decode"][-1]["state_bytes"] if entry["decode"] else None,
            {row["length"]: row["seconds"] for row in entry["cost"] if row["kind"] == "both"},
        )
        for entry in entries
    ]
    advice = recommend(standings, text_ties, recall_ties, length=config.text.length)
    return {
        "version": __version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "config": json.loads(json.dumps(asdict(config))),
        "expected": asdict(expected),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": config.threads,
        },
        "entries": entries,
        "baselines": [_baseline(baseline) for baseline in baselines],
        "ties": {
            "text": {"best": best_text, "specs": text_ties},
            "recall": {"best": best_recall, "specs": recall_ties},
        },
        "recall_chance": 2 / config.recall.vocab_size,
        "recommendation": asdict(advice),
        "reproduce": reproduce(config, expected),
    }


def reproduce(config: CompareConfig, expected: Expected) -> str:
    """The command that repeats a comparison: what differs from the defaults, with steps instead of a budget."""
    fixed = replace(config, budget=None, text_steps=expected.text_steps, recall_steps=expected.recall_steps)
    words = ["regard", "compare", *([] if config.specs == CompareConfig().specs else map(shlex.quote, config.specs))]
    words += _flags("--", asdict(fixed), asdict(CompareConfig()))
    return " ".join(words)


def _flags(prefix: str, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        if name == "specs" or value == defaults[name]:
            continue
        if isinstance(value, dict):
            words += _flags(f"{prefix}{name}.", value, defaults[name])
        else:
            given = value if isinstance(value, tuple | list) else (value,)
            words += [f"{prefix}{name}".replace("_", "-"), *(shlex.quote(str(one)) for one in given)]
    return words


def _sample(jobs: Sequence[dict[str, Any]], kind: str) -> Sample:
    tables = [job["documents"] for job in jobs]
    if kind == "bits":
        top = np.array([table["nats"] for table in tables]) / np.log(2)
        return Sample(top, np.array([table["bytes"] for table in tables], dtype=float))
    return Sample(
        np.array([table["correct"] for table in tables], dtype=float),
        np.array([table["tokens"] for table in tables], dtype=float),
    )


def _entry(
    config: CompareConfig,
    spec: str,
    quality: dict[tuple[str, int, str], dict[str, Any]],
    bits: Estimate,
    hits: Estimate,
    rows: Sequence[sweep.Row],
    default: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    text = [quality[spec, seed, "text"] for seed in range(config.seeds)]
    recall = [quality[spec, seed, "recall"] for seed in range(config.seeds)]
    layers = config.layers(spec)
    own = _stacked(spec, layers, rows)
    exact = _stacked("softmax", ("softmax",) * len(layers), rows)
    defaults = {(row.length, row.kind): row for row in _stacked(spec, layers, [sweep.Row(**row) for row in default])}
    together = [*own, *(replace(row, spec="exact") for row in exact)]
    return {
        "spec": spec,
        "layers": list(layers),
        "parameters": text[0]["parameters"],
        "text": {
            "bits_per_byte": asdict(bits),
            "seeds": [_sample([job], "bits").value for job in text],
            "curves": [job["curve"] for job in text],
            "tokens_per_second": float(np.median([job["tokens_per_second"] for job in text])),
            "peak_bytes": max(job["peak_bytes"] for job in text),
        },
        "recall": {
            "accuracy": asdict(hits),
            "seeds": [_sample([job], "hits").value for job in recall],
            "curves": [job["curve"] for job in recall],
        },
        "cost": [
            {
                **{name: getattr(row, name) for name in ("length", "kind", "seconds", "low", "high")},
                "default_seconds": defaults[row.length, row.kind].seconds
                if (row.length, row.kind) in defaults
                else None,
            }
            for row in own
            if row.kind != "decode"
        ],
        "decode": [
            {"length": row.length, "microseconds": row.seconds * 1e6, "state_bytes": row.state_bytes}
            for row in own
            if row.kind == "decode"
        ],
        "crossover": {
            kind: None if layers == ("softmax",) * len(layers) else sweep.crossover(together, spec, "exact", kind)
            for kind in ("forward", "both")
        },
        "pictures": text[0]["pictures"],
    }


def _stacked(name: str, layers: Sequence[str], rows: Sequence[sweep.Row]) -> list[sweep.Row]:
    """The attention cost of a stack of layers: the sum over its layers, at the lengths that all of them reached."""
    found = {(row.spec, row.length, row.kind): row for row in rows}
    stacked = []
    for length, kind in dict.fromkeys((row.length, row.kind) for row in rows):
        parts = [found.get((layer, length, kind)) for layer in layers]
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
                )
            )
    return stacked


def _baseline(found: dict[str, Any]) -> dict[str, Any]:
    documents = found["documents"]
    sample = Sample(np.array([documents["bits"]], dtype=float), np.array([documents["bytes"]], dtype=float))
    return {"name": found["name"], "bits_per_byte": asdict(estimates({"it": sample})["it"])}
