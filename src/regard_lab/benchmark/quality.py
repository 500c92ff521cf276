"""Quality of one specification or baseline: trains it on a task and measures it.

Run as `python -m regard_lab.benchmark.quality` it serves `run_apart`: a process of its own, so that its peak memory is
its own.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import nn
from torch.nn import functional as F

from regard.files.folders import writing
from regard_lab.benchmark import baselines
from regard_lab.benchmark.baselines import Baseline, BaselineConfig
from regard_lab.benchmark.quiet import Sample, Watch, doubt
from regard_lab.benchmark.timing import paired
from regard_lab.benchmark.worker import in_worker, serve
from regard_lab.tasks import TaskConfig, build_task
from regard_lab.tasks.base import Example, Examples, Task
from regard_lab.training import network
from regard_lab.training.batches import collate
from regard_lab.training.config import SHAPES, AnyModelConfig, TrainingConfig
from regard_lab.training.evaluation import measured, require_finite, score
from regard_lab.training.metrics import Record, peak_bytes, read
from regard_lab.training.network import Network
from regard_lab.training.trainer import Trainer

STEP_TURNS, STEP_TURNS_SECONDS = 11, 30.0
"""of steps that are timed in turns"""
MIN_UNITS = 8
"""with fewer documents than this, the bootstrap resamples windows: a few documents cannot say how much they vary"""


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        model: its shape, mechanisms included; or a baseline.
        task_config: the data.
        training: how.
        run: run directory; continued if it exists.
        evaluate_examples: validation examples, evenly spaced; 0: all.
        steps_only: time this many steps in a scratch model instead of training; 0: train.
        seconds: stop after the step in which they are over; None: train to the last step.
    """

    model: AnyModelConfig | BaselineConfig
    task_config: TaskConfig
    training: TrainingConfig
    run: str
    evaluate_examples: int = 0
    steps_only: int = 0
    seconds: float | None = None

    @property
    def task(self) -> str:
        """Name of the data."""
        return self.task_config.name


def run_apart(
    jobs: list[Job], *, threads: int, each: Callable[[dict[str, Any]], None] = lambda result: None
) -> list[dict[str, Any]]:
    """The results of jobs, one after another in one process of their own, under fixed allocation.

    Args:
        jobs: the peak memory of one includes that of those before it.
        threads: CPU threads.
        each: called with every result as soon as it is there.
    """
    payload = [{**asdict(job), "task": job.task} for job in jobs]
    return in_worker("regard_lab.benchmark.quality", payload, threads=threads, each=each)


def step_timings(jobs: list[Job], *, threads: int, budget_seconds: float = STEP_TURNS_SECONDS) -> list[dict[str, Any]]:
    """The `Timing` of a training step of each job, taken in turns in one process of their own: a slow moment of a
    shared machine hits all of them, so that their ratios hold. positions: that a step reads, on average.
    """
    turns = [{**asdict(job), "task": job.task} for job in jobs]
    payload = {"turns": turns, "budget_seconds": budget_seconds}
    return in_worker("regard_lab.benchmark.quality", payload, threads=threads)


def perform(job: Job) -> dict[str, Any]:
    """The results of a job in this process."""
    began = time.perf_counter()
    torch.set_num_threads(job.training.threads)
    task = build_task(job.task_config, seed=job.training.seed)
    model = _model(job, task)
    if job.steps_only:
        return _timed_steps(job, model, task, began)
    run = Path(job.run)
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(model, task, job.training, run, on_progress=_until(job.seconds, began))
    seconds, share = Watch().timed(lambda: _fit(trainer))
    examples, unit = units(task.examples("valid"), job.evaluate_examples)
    scores = score(
        model,
        examples,
        task.vocab_size,
        limit=job.evaluate_examples,
        batch_size=job.training.batch_size,
        num_targets=task.num_targets,
    )
    assert scores is not None
    way_out = f"compare with a lower learning rate than {job.training.learning_rate:g}"
    require_finite(scores, f"{job.run}, step {trainer.progress.step}", way_out)
    lines = read(run / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "train"]
    return {
        "parameters": sum(x.numel() for x in model.parameters()),
        "length": task.length,
        "seconds": time.perf_counter() - began,
        "steps": trainer.progress.step,
        "untrusted": doubt([Sample(seconds, share, 1.0)], 1),
        "documents": scores.table(),
        "unit": "image" if task.input_dim else unit,
        "curve": [[line["tokens"], line["loss"]] for line in steps],
        "peak_bytes": peak_bytes(torch.device("cpu")),
    }


class _TimeUp(Exception):
    """The time of a training is over."""


def _until(seconds: float | None, began: float) -> Callable[[Record], None]:
    """Ends a training with the first step after so many seconds."""

    def progress(record: Record) -> None:
        if seconds is not None and record["kind"] == "step" and time.perf_counter() - began > seconds:
            raise _TimeUp

    return progress


def _fit(trainer: Trainer) -> None:
    """Train to the last step, or until the time is over: what was learned until then is in the model."""
    with suppress(_TimeUp):
        trainer.fit()


def _model(job: Job, task: Task) -> Network | Baseline:
    if isinstance(job.model, BaselineConfig):
        return baselines.build(job.model, task)
    return network.build(network.fitted(job.model, task), len(task.classes))


@dataclass(frozen=True)
class _Windows:
    """Examples of which each is a document of its own."""

    examples: Examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]._replace(document=index)


def units(examples: Examples, limit: int) -> tuple[Examples, Literal["document", "window"]]:
    """The examples by the unit that a bootstrap resamples: documents, or windows where there are few documents."""
    documents = {examples[index].document for index in measured(len(examples), limit)}
    return (_Windows(examples), "window") if len(documents) < MIN_UNITS else (examples, "document")


def _timed_steps(job: Job, model: nn.Module, task: Task, began: float) -> dict[str, Any]:
    """Median seconds of a training step, the first one left out where there is time for more; of evaluating an example;
    to build model and data, which began then; and of all of it.
    """
    step, watch = _stepping(job, model, task, []), Watch()
    taken, setup = list[Sample](), time.perf_counter() - began
    for _ in range(job.steps_only + 1):
        taken.append(Sample(*watch.timed(step), slower=1.0))
        if job.seconds is not None and time.perf_counter() - began + taken[-1].seconds > job.seconds:
            break
    before = time.perf_counter()
    limit = min(job.training.batch_size, len(task.examples("valid")))
    score(model, task.examples("valid"), task.vocab_size, limit=limit, batch_size=limit, num_targets=task.num_targets)
    return {
        "setup": setup,
        "seconds": statistics.median(sample.seconds for sample in taken[1:] or taken),
        "untrusted": doubt(taken, len(taken)),
        "example_seconds": (time.perf_counter() - before) / limit,
        "peak_bytes": peak_bytes(torch.device("cpu")),
        "total": time.perf_counter() - began,
    }


def _stepping(job: Job, model: nn.Module, task: Task, read: list[int]) -> Callable[[], None]:
    """A call trains one more step, on the examples in their order; the positions that it reads are appended."""
    examples = task.examples("train")
    optimizer = torch.optim.AdamW(model.parameters())
    weight = cast(dict[str, float], model.loss_weights)
    first = count(0, job.training.batch_size)

    def step() -> None:
        at = next(first)
        ids = [index % len(examples) for index in range(at, at + job.training.batch_size)]
        batch = collate(examples, ids, task.vocab_size, num_targets=task.num_targets)
        read.append(batch.positions)
        output = batch.through(model)
        loss = F.cross_entropy(output.logits.flatten(0, -2), batch.targets.flatten())
        (loss + sum(weight[name] * extra for name, extra in output.losses.items())).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _turns(jobs: list[Job], budget_seconds: float) -> list[dict[str, Any]]:
    """See `step_timings`. All jobs have the same data."""
    torch.set_num_threads(jobs[0].training.threads)
    task = build_task(jobs[0].task_config, seed=jobs[0].training.seed)
    reads: dict[str, list[int]] = {str(at): [] for at in range(len(jobs))}
    calls = {str(at): _stepping(job, _model(job, task), task, reads[str(at)]) for at, job in enumerate(jobs)}
    taken = paired(calls, rounds=STEP_TURNS, budget_seconds=budget_seconds)
    return [{**asdict(taken[name]), "positions": statistics.mean(reads[name])} for name in calls]


def _job(document: dict[str, Any]) -> Job:
    """A job from JSON."""
    name = document.pop("task")
    tasks = {kind.name: kind for kind in get_args(TaskConfig)}

    def restored(cls: type, values: dict[str, Any]) -> Any:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    return Job(
        **{
            **document,
            "model": restored(BaselineConfig if "kind" in document["model"] else SHAPES[name], document["model"]),
            "task_config": restored(tasks[name], document["task_config"]),
            "training": restored(TrainingConfig, document["training"]),
        }
    )


def _serve(payload: Any) -> Iterator[Any]:
    if isinstance(payload, dict):
        return iter(_turns([_job(document) for document in payload["turns"]], payload["budget_seconds"]))
    return (perform(_job(document)) for document in payload)


if __name__ == "__main__":
    sys.exit(serve(_serve))
