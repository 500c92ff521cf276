"""What stands beside the specifications: models that only count, and classifiers without attention."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from regard.benchmark import jobs
from regard.benchmark.config import CompareConfig
from regard.benchmark.measures import Measure
from regard.benchmark.quality import Answers, run_apart, units
from regard.tasks import build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard.tasks.base import IGNORE, Examples, Task
from regard.tasks.baselines import Coded
from regard.training.data_order import DataOrder
from regard.training.evaluation import Scores, Sums, measured

PROBE_STEPS = 40
"""of a baseline, to see how many fit into the seconds that it gets"""
COUNTING = {"text": "n-gram and xz", "masked": "unigram", "classification": "majority", "recall": ""}
"""what counts for each measure; of recall a key says nothing about its value, and what guessing gives is known"""
Kept = Callable[[str, Callable[[], Any], str], Any]


def counted(config: CompareConfig, measure: Measure, steps: int) -> list[dict[str, Any]]:
    """Models that only count: they learn the examples that seed 0 trained on, and are measured on the same as all.

    The n-gram and xz code text. The unigram predicts every token, and the majority every class, by its frequency.

    Returns:
        name and `tables`: the columns of `Scores.table`, and of classes macro_f1, for one seed.
    """
    task = build_task(measure.task(config))
    order = DataOrder(len(task.examples("train")), measure.option(config, "batch_size"), 0)
    seen = sorted({index for step in range(steps) for index in order.batch(step)})
    limit = measure.evaluated(config)
    if measure.name == "text":
        coded = measured(len(task.examples("valid")), limit)
        found = {
            f"{config.ngram}-gram": ngram_bits_per_byte(task, order=config.ngram, windows=coded, train_windows=seen),
            "xz": xz_bits_per_byte(task, windows=coded, train_windows=seen),
        }
        return [{"name": name, "tables": [_columns(bits)]} for name, bits in found.items()]
    return [{"name": COUNTING[measure.name], "tables": [_frequencies(task, seen, limit)]}]


def _columns(coded: Coded) -> dict[str, Any]:
    kept = coded.nbytes > 0
    return {"nats": (coded.bits[kept] * math.log(2)).tolist(), "bytes": coded.nbytes[kept].tolist()}


def _frequencies(task: Task, seen: Sequence[int], limit: int) -> dict[str, Any]:
    """p(target) = (count + 1) / (all + V) over the targets of these training examples, whatever the input."""
    train = task.examples("train")
    counts = np.ones(task.num_targets)
    for index in seen:
        counts += np.bincount(_answers(train, index), minlength=task.num_targets)
    nats, best = -np.log(counts / counts.sum()), int(counts.argmax())
    examples, _ = units(task.examples("valid"), limit)
    scores, answers = Scores(), Answers()
    for index in measured(len(examples), limit):
        example, wanted = examples[index], _answers(examples, index)
        row = (float(nats[wanted].sum()), wanted.size, int((wanted == best).sum()), example.nbytes)
        scores.documents.setdefault(example.document, Sums()).add(*row)
        answers.targets += wanted.tolist()
        answers.predicted += [best] * wanted.size
    return {**scores.table(), "macro_f1": answers.macro_f1() if task.classes else None}


def _answers(examples: Examples, index: int) -> Int64[np.ndarray, "targets"]:
    targets = examples[index].targets
    return targets[targets != IGNORE]


def trained(config: CompareConfig, out: Path, seconds: float, kept: Kept) -> list[dict[str, Any]]:
    """The classifiers that `config.baselines` names, each trained for so many seconds, with every seed.

    Args:
        config: of the comparison.
        out: its folder.
        seconds: that a specification trained for, on average.
        kept: (name, make, label) -> what make gives, or what it gave before the comparison was interrupted.

    Returns:
        name, `tables` as `counted` (one for each seed), and `jobs`: what each training found.
    """

    def apart(*described: jobs.Job) -> list[dict[str, Any]]:
        return run_apart(list(described), threads=config.threads)

    def steps() -> dict[str, int]:
        probes = [jobs.baseline(config, out, kind, 0, PROBE_STEPS, probe=True) for kind in config.baselines]
        taken = [found["step_seconds"] for found in apart(*probes)]
        return {kind: max(round(seconds / one), 1) for kind, one in zip(config.baselines, taken, strict=True)}

    if not config.baselines:
        return []
    planned = kept("baseline-steps", steps, f"how many steps of a baseline take {seconds:.0f} s")
    rows = []
    for kind in config.baselines:
        found = [
            kept(
                f"baseline-{kind}-{seed}",
                lambda kind=kind, seed=seed: apart(jobs.baseline(config, out, kind, seed, planned[kind]))[0],
                f"{kind}, seed {seed}, {planned[kind]} steps",
            )
            for seed in range(config.seeds)
        ]
        tables = [{**one["documents"], "macro_f1": one["macro_f1"]} for one in found]
        rows.append({"name": kind, "tables": tables, "jobs": found, "steps": planned[kind]})
    return rows
