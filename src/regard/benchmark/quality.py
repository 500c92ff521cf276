"""Quality of one specification: trains it on text and on recall, and takes a picture of its attention.

Run as `python -m regard.benchmark.quality` it reads a `Job` as JSON from standard input and writes its results as JSON:
a process of its own, so that its peak memory is its own.
"""

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from regard.benchmark.timing import isolated
from regard.core import Attention
from regard.errors import RegardError
from regard.functional import weights
from regard.models import LanguageModel, ModelConfig
from regard.tasks import RecallConfig, TaskConfig, TextConfig, build_task
from regard.tasks.base import Task
from regard.training.config import TrainingConfig
from regard.training.evaluation import score
from regard.training.metrics import read
from regard.training.trainer import Trainer

PICTURE = 64
"""positions in a picture of the attention matrix"""


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        model: its shape, mechanisms included.
        task: "text" or "recall", with its configuration in `task_config`.
        training: how.
        run: run directory; continued if it exists.
        evaluate_examples: validation examples, evenly spaced; 0: all.
        steps_only: time this many steps in a scratch model instead of training; 0: train.
    """

    model: ModelConfig
    task: Literal["text", "recall"]
    task_config: TaskConfig
    training: TrainingConfig
    run: str
    evaluate_examples: int = 0
    steps_only: int = 0


def run_apart(jobs: list[Job], *, threads: int) -> list[dict[str, Any]]:
    """The results of jobs, one after another in one process of their own, under fixed allocation."""
    payload = json.dumps([asdict(job) for job in jobs])
    return json.loads(isolated("regard.benchmark.quality", payload, fixed_allocation=True, threads=threads))


def perform(job: Job) -> dict[str, Any]:
    """The results of a job in this process."""
    torch.set_num_threads(job.training.threads)
    task = build_task(job.task_config, seed=job.training.seed)
    config = replace(job.model, vocab_size=task.vocab_size, max_length=max(task.length, job.model.max_length))
    model = LanguageModel(config)
    if job.steps_only:
        return _timed_steps(job, model, task)
    run = Path(job.run)
    run.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    trainer = Trainer(model, task, job.training, run)
    trainer.fit()
    examples = task.examples("valid")
    scores = score(model, examples, task.vocab_size, limit=job.evaluate_examples, batch_size=job.training.batch_size)
    assert scores is not None
    lines = read(run / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "train"]
    seconds = sum(line["timing"]["seconds"] for line in steps)  # type: ignore[index,call-overload,misc]
    return {
        "parameters": model.parameter_count(),
        "seconds": time.perf_counter() - began,
        "documents": scores.table(),
        "curve": [[line["tokens"], line["loss"]] for line in steps],
        "tokens_per_second": job.training.steps * job.training.batch_size * task.length / seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "pictures": pictures(model, task) if job.task == "text" else [],
    }


def _timed_steps(job: Job, model: LanguageModel, task: Task) -> dict[str, Any]:
    """Median seconds of a training step, one warm-up step left out."""
    from regard.training.batches import collate

    examples = task.examples("train")
    optimizer = torch.optim.AdamW(model.parameters())
    taken: list[float] = []
    for step in range(job.steps_only + 1):
        began = time.perf_counter()
        ids = range(step * job.training.batch_size, (step + 1) * job.training.batch_size)
        batch = collate(examples, [at % len(examples) for at in ids], task.vocab_size)
        output = model(batch.inputs, key_mask=batch.key_mask)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), batch.targets.flatten())
        (loss + sum(model.loss_weights[name] * extra for name, extra in output.losses.items())).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": sorted(taken[1:])[len(taken[1:]) // 2], "peak_bytes": peak}


@torch.no_grad()
def pictures(model: LanguageModel, task: Task) -> list[dict[str, Any]]:
    """The effective attention matrix of every layer (head 0) on the start of the first validation example."""
    model.eval()
    tokens = torch.from_numpy(task.examples("valid")[0].inputs[:PICTURE])[None]
    calls: list[tuple[Attention, Tensor, Tensor, Any]] = []

    def remember(module: torch.nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        calls.append((cast(Attention, module), given[0], given[1], named.get("bias")))

    hooks = [m.register_forward_pre_hook(remember, with_kwargs=True) for m in model.mechanisms]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return [
        {"layer": layer, "matrix": [[round(x, 4) for x in row] for row in weights(m, q, k, bias=bias)[0, 0].tolist()]}
        for layer, (m, q, k, bias) in enumerate(calls)
        if m.info.affine_in_value
    ]


def _job(given: dict[str, Any]) -> Job:
    """A job from JSON."""
    kind = {"text": TextConfig, "recall": RecallConfig}[given["task"]]

    def restored(cls: type, values: dict[str, Any]) -> Any:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    return Job(
        **{
            **given,
            "model": restored(ModelConfig, given["model"]),
            "task_config": restored(kind, given["task_config"]),
            "training": restored(TrainingConfig, given["training"]),
        }
    )


def main() -> int:
    """Jobs from standard input, results to standard output."""
    try:
        json.dump([perform(_job(given)) for given in json.loads(sys.stdin.read())], sys.stdout)
    except RegardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
