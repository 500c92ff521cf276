"""Training: a model and a task in, a run directory out. Names are imported on first use."""

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "RunConfig": "config",
    "TrainingConfig": "config",
    "ParallelConfig": "parallel_config",
    "Trainer": "trainer",
    "Interrupted": "interruption",
    "TrainedModel": "trained_model",
    "RunResult": "run",
    "Start": "start",
    "evaluate": "run",
    "load": "run",
    "resume": "run",
    "train": "run",
}

__all__ = [
    "Interrupted",
    "ParallelConfig",
    "RunConfig",
    "RunResult",
    "Start",
    "TrainedModel",
    "Trainer",
    "TrainingConfig",
    "evaluate",
    "load",
    "resume",
    "train",
]

if TYPE_CHECKING:
    from regard_lab.training.config import RunConfig, TrainingConfig
    from regard_lab.training.interruption import Interrupted
    from regard_lab.training.parallel_config import ParallelConfig
    from regard_lab.training.run import RunResult, evaluate, load, resume, train
    from regard_lab.training.start import Start
    from regard_lab.training.trained_model import TrainedModel
    from regard_lab.training.trainer import Trainer


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard_lab.training' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard_lab.training.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
