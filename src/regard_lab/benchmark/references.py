"""The rows beside the specifications: models that only count, and classifiers without attention."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from regard_lab.benchmark import jobs
from regard_lab.benchmark.config import CompareConfig
from regard_lab.benchmark.measures import Measure
from regard_lab.benchmark.quality import run_apart, units
from regard_lab.tasks import build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard_lab.tasks.base import IGNORE, Examples, Task
from regard_lab.tasks.baselines import Coded
from regard_lab.training.data_order import DataOrder
from regard_lab.training.evaluation import Scores, Sums, measured

COUNTING = {
    "text": "n-gram and xz",
    "masked": "unigram",
    "classification": "majority",
    "recall": "",
}
"""the models that count, by measure; of recall a key says nothing about its value, and what guessing gives is known"""
Kept = Callable[[str, Callable[[], Any], str], Any]


def counted(config: CompareConfig, measure: Measure, steps: int) -> list[dict[str, Any]]:
    """Models that only count: they learn the examples that seed 0 trained on, and are measured on the same as all.

    The n-gram and xz code text. The unigram predicts every token, and the majority every class, by its frequency.

    Returns:
        name and `tables`: the columns of `Scores.table`, for one seed.
    """
    task = build_task(measure.task(config))
    order = DataOrder(len(task.examples("train")), measure.option(config, "batch_size"), 0)
    seen = sorted({index for step in range(steps) for index in order.batch(step)})
    limit = measure.evaluated(config)
    if measure.name == "text":
        coded = measured(len(task.examples("valid")), limit)
        codings = {
            f"{config.ngram}-gram": ngram_bits_per_byte(task, order=config.ngram, windows=coded, train_windows=seen),
            "xz": xz_bits_per_byte(task, windows=coded, train_windows=seen),
        }
        return [{"name": name, "tables": [_columns(bits)]} for name, bits in codings.items()]
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
    scores = Scores()
    for index in measured(len(examples), limit):
        example, wanted = examples[index], _answers(examples, index)
        row = (float(nats[wanted].sum()), wanted.size, int((wanted == best).sum()), example.nbytes)
        scores.documents.setdefault(example.document, Sums()).add(*row)
    return scores.table()


def _answers(examples: Examples, index: int) -> Int64[np.ndarray, "targets"]:
    targets = examples[index].targets
    return targets[targets != IGNORE]


def timed_as(baseline: str) -> str:
    """The name of a baseline among timings, which no specification has: there is a mechanism `linear` too."""
    return f"baseline {baseline}"


def trained(
    config: CompareConfig,
    out: Path,
    steps: int,
    speeds: Mapping[str, Mapping[str, Any]],
    kept: Kept,
    share: Callable[[str], float | None] = lambda job: None,
) -> list[dict[str, Any]]:
    """The classifiers that `config.baselines` names, each trained for as long as a specification, with every seed.

    As long means as many steps as fit into the time of a specification's (of their mean, where there are several). The
    times of steps are taken in turns: on a machine whose speed changes, those of trainings could not be compared.

    Args:
        config: of the comparison.
        out: its folder.
        steps: of a specification.
        speeds: the timing of a step of every specification, by itself, and baseline, by `timed_as`.
        kept: (name, make, label) -> what make gives, or what it gave before the comparison was interrupted.

        share: the seconds that a job may take, by its name.

    Returns:
        name, `tables` as `counted` (one for each seed), and `jobs`: what each training found.
    """

    total = steps * sum(speeds[spec]["seconds"] for spec in config.specs) / len(config.specs)
    taken = {kind: max(round(total / speeds[timed_as(kind)]["seconds"]), 1) for kind in config.baselines}
    rows = []
    for kind in config.baselines:
        trainings = [
            kept(
                f"baseline-{kind}-{seed}",
                lambda kind=kind, seed=seed: run_apart(
                    [
                        replace(
                            jobs.baseline(config, out, kind, seed, taken[kind]),
                            seconds=share(f"baseline-{kind}-{seed}"),
                        )
                    ],
                    threads=config.threads,
                )[0],
                f"{kind}, seed {seed}, {taken[kind]} steps",
            )
            for seed in range(config.seeds)
        ]
        tables = [one["documents"] for one in trainings]
        rows.append({"name": kind, "tables": tables, "jobs": trainings})
    return rows
