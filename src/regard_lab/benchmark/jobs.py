"""The trainings of a comparison, described."""

import hashlib
from pathlib import Path

from regard_lab.benchmark.baselines import BaselineConfig
from regard_lab.benchmark.config import BaselineKind, CompareConfig
from regard_lab.benchmark.measures import CLASSIFICATION, Measure
from regard_lab.benchmark.quality import Job
from regard_lab.tasks.config import ImagesConfig
from regard_lab.training.config import TrainingConfig


def job(config: CompareConfig, out: Path, measure: Measure, spec: str, seed: int, steps: int) -> Job:
    """The training of a specification.

    Args:
        config: of the comparison.
        out: its folder.
        measure: the number that the training is for.
        spec: of the mechanism.
        seed: of weights, data order and drawn data.
        steps: optimizer steps.
    """
    slug = f"{spec.translate({ord(c): '-' for c in ' /()=,+:'})}-{hashlib.sha256(spec.encode()).hexdigest()[:6]}"
    task = measure.task(config)
    assert not isinstance(task, ImagesConfig), "nothing is compared on images"
    return Job(
        model=measure.model(config, config.layers(spec), max_length=task.length, seed=seed),
        task_config=task,
        training=_training(config, measure, seed, steps),
        run=str(out / "runs" / f"{slug}-{measure.name}-{seed}"),
        evaluate_examples=measure.evaluated(config),
    )


def baseline(config: CompareConfig, out: Path, kind: BaselineKind, seed: int, steps: int) -> Job:
    """The training of a classifier without attention."""
    return Job(
        model=BaselineConfig(kind=kind, dim=config.shape.dim, layers=config.shape.layers, seed=seed),
        task_config=config.classification,
        training=_training(config, CLASSIFICATION, seed, steps),
        run=str(out / "runs" / f"baseline-{kind}-{seed}"),
        evaluate_examples=CLASSIFICATION.evaluated(config),
    )


def _training(config: CompareConfig, measure: Measure, seed: int, steps: int) -> TrainingConfig:
    return TrainingConfig(
        steps=steps,
        batch_size=measure.option(config, "batch_size"),
        learning_rate=measure.option(config, "learning_rate"),
        warmup=max(steps // 10, 1),
        log_every=max(steps // 40, 1),
        evaluate_every=steps,
        evaluate_examples=32,
        checkpoint_every=max(steps // 4, 1),
        keep=1,
        seed=seed,
        device="cpu",
        threads=config.threads,
    )
