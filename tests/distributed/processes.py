"""Run by the tests as a program: several processes train together, and some misbehave.

    processes.py SCENARIO[@OPTION=VALUE[,...]] COUNT FOLDER [CONFIG] [then ...]

OPTION is one of `ParallelConfig`, such as sequence=2. What is behind `then` is another such job, done after
it by the same program.

Forks COUNT processes, so that torch is imported once, with the environment that torchrun would give them; this one
keeps their store, as torchrun does. Prints the exit codes as JSON, of several jobs a list of each; what each process
wrote is in FOLDER/RANK.txt. COUNT 0 is one process by itself, whatever OPTION says.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from evidence.campaign import injected
from regard.core.errors import DataError, RegardError
from regard.distributed import joined
from regard.models import LanguageModel
from regard.models.config import ModelConfig
from regard_lab.distributed import ranks_for
from regard_lab.tasks import RecallConfig, Task, build_task
from regard_lab.tasks.base import Example, Examples
from regard_lab.training import Trainer, TrainingConfig, resume, toml, train, trainer
from regard_lab.training.parallel_config import ParallelConfig
from regard_lab.training.ranks import ALONE, Ranks

MODELS = {
    "softmax": {"attention": ("softmax",)},
    "codes": {"attention": ("vector_quantized(num_codes=4, block_size=4)",)},
    "clusters": {"attention": ("routing(num_clusters=3)",)},
    "redrawn": {"attention": ("performer(num_features=8, redraw_interval=2)",)},
    "reversible": {"attention": ("softmax",), "block": "reversible"},
    "checkpointed": {"attention": ("vector_quantized(num_codes=4, block_size=4)",), "checkpoint": "block"},
    "exits": {"attention": ("softmax",), "depth": "early_exit(exits=aligned)"},
}
"""whose processes must meet in other places"""
Made = TypeVar("Made", bound=torch.nn.Module)


def curves(folder: Path, ranks: Ranks, count: int = 12) -> None:
    """The losses of each kind of model in float64, and the weights and buffers that it ends with."""
    task = recalled(count)
    config = TrainingConfig(
        steps=8, batch_size=12, accumulation=2, warmup=2, log_every=1, evaluate_every=8, threads=1, learning_rate=1e-2,
        clip=2.0,  # which some steps exceed
    )  # fmt: skip
    found = {}
    for name, options in MODELS.items():
        options = {"max_length": 18, "heads": 2, **options}
        shape = ModelConfig(dim=16, layers=2, vocab_size=task.vocab_size, **options)
        model = moved_apart(LanguageModel(shape).double(), ranks)
        (folder / name).mkdir(exist_ok=True)
        Trainer(model, task, config, folder / name, ranks=ranks).fit()
        ranks.meet()
        found[name] = curves_of(folder / name, model)
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


class WithBytes:
    """Examples of which each stands for bytes, another number of them."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]._replace(nbytes=1 + index)


def recalled(count: int) -> Task:
    """What all learn, with so many examples held out."""
    task = build_task(RecallConfig(vocab_size=16, length=18, num_pairs=2, num_examples=50, num_held_out=count), seed=0)
    drawn = task.examples
    task.examples = lambda split: WithBytes(drawn(split))  # type: ignore[method-assign]
    return task


def moved_apart(model: Made, ranks: Ranks) -> Made:
    """With other weights in each process: those of the first one count."""
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * ranks.rank
    return model


def curves_of(run: Path, model: torch.nn.Module) -> dict[str, Any]:
    """What a training told, and the weights and buffers that it ended with."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [
        [line[key] for key in ("nats_per_token", "tokens", "bytes")] for line in lines if line["kind"] == "evaluate"
    ]
    return {
        "losses": [line["loss"] for line in lines if line["kind"] == "train"],
        "norms": [line["gradient_norm"] for line in lines if line["kind"] == "train"],
        "valid": [number for line in scores for number in line],
        "tensors": {key: x.double().flatten().tolist() for key, x in model.state_dict().items()},
    }


def trained(folder: Path, ranks: Ranks, config: str, **changes: object) -> None:
    """A run, begun or continued."""
    values = toml.load(Path(config))
    train(replace(values, training=replace(values.training, **changes)), folder / "run", resume=True, ranks=ranks)


def continued(folder: Path, ranks: Ranks, config: str) -> None:
    """A run with as many steps again."""
    del config
    run = folder / "run"
    resume(run, steps=2 * toml.load(run / "config.toml").training.steps, ranks=ranks)


def at_step(number: int, rank: int, ranks: Ranks, action: Callable[[], None]) -> None:
    """Make a process do something before a step."""
    step = Trainer._step

    def stepping(self: Trainer) -> None:
        if self.progress.step == number and ranks.rank == rank:
            action()
        step(self)

    trainer.Trainer._step = stepping  # type: ignore[method-assign]


def killed(folder: Path, ranks: Ranks, config: str) -> None:
    at_step(6, 1, ranks, lambda: os.kill(os.getpid(), signal.SIGKILL))
    trained(folder, ranks, config)


def stopped(folder: Path, ranks: Ranks, config: str) -> None:
    at_step(6, 1, ranks, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trained(folder, ranks, config)


def stopped_slowly(folder: Path, ranks: Ranks, config: str) -> None:
    """The first process takes its time to save, and the others leave when they may."""
    save = trainer.checkpoint.save

    def slow(*args: object, **kwargs: object) -> Path:
        time.sleep(1)
        return save(*args, **kwargs)  # type: ignore[arg-type]

    trainer.checkpoint.save = slow
    try:
        stopped(folder, ranks, config)
    finally:
        there = [path.name for path in trainer.checkpoint.paths(folder / "run" / "checkpoints")]
        print(f"left behind {' '.join(there)}", flush=True)


def unlike_checkpoints(folder: Path, ranks: Ranks, config: str) -> None:
    """One process sees the run as it was before."""
    del config
    resume(folder / ("older" if ranks.rank else "run"), steps=16, ranks=ranks)


def unlike_ways(folder: Path, ranks: Ranks, config: str) -> None:
    """One process is told to share something else."""
    parts = ParallelConfig(sequence=2)
    trained(folder, ranks_for(ranks.group, parts) if ranks.rank else ranks, config)  # type: ignore[attr-defined]


def unlike_calls(folder: Path, ranks: Ranks, config: str) -> None:
    """One process goes on with the run that the other one begins or goes on with."""
    (continued if ranks.rank else trained)(folder, ranks, config)


def failing(folder: Path, ranks: Ranks, config: str) -> None:
    def fail() -> None:
        raise DataError("a page of the book is missing")

    at_step(6, 1, ranks, fail)
    trained(folder, ranks, config)


def interrupted(folder: Path, ranks: Ranks, config: str) -> None:
    """One process is interrupted before there is anything that it could save."""
    if ranks.rank:
        raise KeyboardInterrupt
    trained(folder, ranks, config)


def diverging(folder: Path, ranks: Ranks, config: str) -> None:
    score = torch.nn.functional.cross_entropy

    def infinite(*args: object, **kwargs: object) -> torch.Tensor:
        return score(*args, **kwargs) * float("inf")  # type: ignore[arg-type]

    at_step(6, 1, ranks, lambda: setattr(trainer.F, "cross_entropy", infinite))
    trained(folder, ranks, config)


def unlike(folder: Path, ranks: Ranks, config: str) -> None:
    """One process is given another learning rate, and its folder has no run yet."""
    trained(folder, ranks, config, learning_rate=0.5 if ranks.rank else 1e-3)


_ALL = (
    curves,
    trained,
    continued,
    killed,
    stopped,
    stopped_slowly,
    failing,
    interrupted,
    diverging,
    unlike,
    unlike_calls,
    unlike_checkpoints,
    unlike_ways,
)
SCENARIOS = {each.__name__: each for each in _ALL}


def child(scenario: str, folder: Path, rest: list[str], count: int) -> int:
    """One of the processes; its exit code, as the command's."""
    injected.read_in_an_order_of_its_own(int(os.environ["RANK"]))
    name, _, said = scenario.partition("@")
    options = dict(option.split("=") for option in said.split(",") if option)
    try:
        if not count:
            SCENARIOS[name](folder, ALONE, *rest)
            return 0
        with joined() as group:
            parallel = ParallelConfig(**{key: int(value) for key, value in options.items()})
            SCENARIOS[name](folder, ranks_for(group, parallel), *rest)
    except RegardError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(scenario: str, count: int, folder: Path, rest: list[str]) -> list[int]:
    """The exit codes of the processes, negative for a signal."""
    os.environ |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    told, tell = os.pipe()
    children = []
    folder.mkdir(exist_ok=True)
    for rank in range(max(count, 1)):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            os.environ["MASTER_PORT"] = os.read(told, 5).decode().strip() if count else ""
            output = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 1
            try:
                code = child(scenario, folder, rest, count)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    # Not before: its thread may hold a lock, which a child of that moment would never get.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.write(tell, f"{store.port:5}".encode() * count)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def main(words: list[str]) -> None:
    """The jobs of the command line."""
    torch.set_num_threads(1)
    jobs: list[list[str]] = [[]]
    for word in words:
        if word == "then":
            jobs.append([])
        else:
            jobs[-1].append(word)
    codes = [run(job[0], int(job[1]), Path(job[2]), job[3:]) for job in jobs]
    print(json.dumps(codes if len(codes) > 1 else codes[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
