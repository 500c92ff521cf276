"""What a run is: three frozen sections, the same in Python, in TOML and on the command line."""

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ConfigError
from regard.models.config import ModelConfig
from regard.tasks.config import TaskConfig, TextConfig
from regard.training.schedule import Schedule

_LEAST = {
    "steps": 1,
    "batch_size": 1,
    "accumulation": 1,
    "warmup": 0,
    "log_every": 1,
    "evaluate_every": 1,
    "evaluate_examples": 0,
    "checkpoint_every": 1,
    "keep": 1,
    "threads": 0,
    "weight_decay": 0,
    "clip": 0,
}


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Raises:
        ConfigError: values that make no sense, all of them at once, one a line.
    """

    steps: int = 1000
    """optimizer steps"""
    batch_size: int = 16
    """examples per optimizer step"""
    accumulation: int = 1
    """parts in which a batch is computed; changes the memory, not the result"""
    learning_rate: float = 1e-3
    """the peak, reached after the warm-up; under the schedule noam a factor of the formula, 1 as published"""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay of the running means of the gradient and of its square"""
    epsilon: float = 1e-8
    """added to the root of AdamW's second mean"""
    weight_decay: float = 0.1
    """decoupled; for matrices only, never for biases, norms and position tables"""
    decay_embeddings: bool = False
    """weight decay for embeddings too"""
    warmup: int = 100
    """steps before the learning rate is at its peak"""
    schedule: Schedule = "cosine"
    """the learning rate after the warm-up; noam: all of it as in the first Transformer"""
    minimum_ratio: float = 0.1
    """the lowest learning rate, as a share of the peak"""
    clip: float = 1.0
    """largest norm of the gradient; 0: no clipping"""
    label_smoothing: float = 0.0
    """share e of a target's weight spread over all tokens, (1 - e) one-hot + e / vocabulary; in training only"""
    log_every: int = 10
    """steps per line of metrics.jsonl"""
    evaluate_every: int = 250
    """steps between evaluations; the last step always evaluates"""
    evaluate_examples: int = 0
    """validation examples, evenly spaced; 0: all"""
    checkpoint_every: int = 250
    """steps between checkpoints; the last step always saves"""
    keep: int = 2
    """newest checkpoints kept, besides the one that evaluated best"""
    seed: int = 0
    """of data order and dropout; the weights have model.seed"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast; weights, optimizer and loss stay float32"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu"""
    threads: int = 0
    """CPU threads; 0: torch's choice"""
    compile: bool = False
    """torch.compile the model"""
    tensorboard: bool = False
    """write the metrics for TensorBoard too"""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in _LEAST.items()
            if not getattr(self, name) >= least
        ]
        problems += [
            f"{name} must be positive, got {getattr(self, name)}"
            for name in ("learning_rate", "epsilon")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if not all(0 <= beta < 1 for beta in self.betas):
            problems.append(f"betas must be in [0, 1), got {self.betas}")
        if not 0 <= self.minimum_ratio <= 1:
            problems.append(f"minimum_ratio must be in [0, 1], got {self.minimum_ratio}")
        if not 0 <= self.label_smoothing < 1:
            problems.append(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if self.schedule == "noam" and self.warmup < 1:
            problems.append(f"warmup must be at least 1 under schedule noam, got {self.warmup}")
        if self.schedule == "noam" and self.learning_rate < 0.01:
            problems.append(
                f"learning_rate is a factor under schedule noam (1 as published), got {self.learning_rate}; set it to "
                "0.01 or more"
            )
        if self.accumulation >= 1 and self.batch_size % self.accumulation:
            problems.append(f"accumulation must divide batch_size={self.batch_size}, got {self.accumulation}")
        if problems:
            raise ConfigError("\n".join(problems))


@dataclass(frozen=True)
class RunConfig:
    """A training run, complete: model, task, training.

    The vocabulary belongs to the task: `model.vocab_size` becomes the task's, and `model.max_length` at least the
    task's length, when the run starts (`regard.training.run.fitted`); config.toml says what they became.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TextConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
