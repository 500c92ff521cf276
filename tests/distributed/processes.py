"""Run by the tests as a program: several processes train together, and some misbehave.

    processes.py SCENARIO COUNT FOLDER [CONFIG]

Forks COUNT processes, so that torch is imported once, with the environment that torchrun would give them; this one
keeps their store, as torchrun does. Prints the exit codes as JSON; what each wrote is in FOLDER/RANK.txt.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from regard.distributed import Replicas, joined
from regard.errors import DataError, RegardError
from regard.models import LanguageModel
from regard.models.config import ModelConfig
from regard.tasks import RecallConfig, build_task
from regard.training import Trainer, TrainingConfig, resume, toml, train, trainer
from regard.training.ranks import ALONE, Ranks

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


def curves(folder: Path, ranks: Ranks, count: int = 12) -> None:
    """The losses of each kind of model in float64, and the weights and buffers that it ends with."""
    task = build_task(RecallConfig(vocab_size=16, length=18, num_pairs=2, num_examples=50, num_held_out=count), seed=0)
    config = TrainingConfig(
        steps=8, batch_size=12, accumulation=2, warmup=2, log_every=1, evaluate_every=8, threads=1, learning_rate=1e-2
    )
    found = {}
    for name, options in MODELS.items():
        shape = ModelConfig(dim=16, heads=2, layers=2, vocab_size=task.vocab_size, max_length=18, **options)
        model = LanguageModel(shape).double()
        (folder / name).mkdir(exist_ok=True)
        Trainer(model, task, config, folder / name, ranks=ranks).fit()
        ranks.meet()
        lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        found[name] = {
            "losses": [line["loss"] for line in lines if line["kind"] == "train"],
            "norms": [line["gradient_norm"] for line in lines if line["kind"] == "train"],
            "valid": [line["nats_per_token"] for line in lines if line["kind"] == "evaluate"],
            "tensors": {key: x.double().flatten().tolist() for key, x in model.state_dict().items()},
        }
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


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


def failing(folder: Path, ranks: Ranks, config: str) -> None:
    def fail() -> None:
        raise DataError("a page of the book is missing")

    at_step(6, 1, ranks, fail)
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
    diverging,
    unlike,
    unlike_checkpoints,
)
SCENARIOS = {each.__name__: each for each in _ALL}


def child(scenario: str, folder: Path, rest: list[str]) -> int:
    """One of the processes; its exit code, as the command's."""
    try:
        with joined() as group:
            SCENARIOS[scenario](folder, Replicas(group), *rest)
    except RegardError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(scenario: str, count: int, folder: Path, rest: list[str]) -> list[int]:
    """The exit codes of the processes, negative for a signal."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    children = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            output = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 1
            try:
                code = child(scenario, folder, rest)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "alone":
        curves(Path(sys.argv[2]), ALONE)
    else:
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])))
