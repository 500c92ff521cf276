"""The configuration of a run: three frozen sections, the same in Python, in TOML and on the command line."""

from dataclasses import dataclass, field
from typing import Literal

from regard.core.errors import ConfigError
from regard.core.types_of import typed, typed_fields
from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard_lab.tasks.config import (
    ClassificationConfig,
    GraphConfig,
    ImagesConfig,
    MaskedConfig,
    SuperResolutionConfig,
    TaskConfig,
    TextConfig,
)
from regard_lab.training.schedule import Schedule

_MOST_THREADS = 1024
"""more than any processor has; of far more, the operating system ends the process"""


_LEAST_VALUES = {
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


@typed_fields
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
    """parts in which a batch is computed, to need less memory; the result is the same, but for dropout, and for the few
    losses and gradients that docs/distributed.md lists"""
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
    carry: bool = False
    """of a text and a model with a memory: every row of a batch reads documents window after window and goes on with
    its memory, which is cleared where a document begins; whole documents are evaluated so. Otherwise a window begins
    with an empty memory"""
    only: tuple[str, ...] = ()
    """parameters that learn, by their names or by those of modules, for all that they hold; * stands for anything in a
    name: '*.memory', blocks.24. The others keep their bits and have no gradients (codebooks still learn from calls);
    without any, all learn"""
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
    datastore: str | None = None
    """of a text and a model with neighbours: a folder of regard knn build, in which every position is looked up; the
    entry that was made of the very target is left out. Evaluation and generation read it too"""
    datastore_model: str | None = None
    """the model that made --datastore, which stays as it is: directory of a run, or published weights, as regard knn
    build takes them"""

    @typed
    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in _LEAST_VALUES.items()
            if not getattr(self, name) >= least
        ]
        problems += [
            f"{name} must be positive, got {getattr(self, name)}"
            for name in ("learning_rate", "epsilon")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if not -(1 << 63) <= self.seed < 1 << 63:
            problems.append(f"seed must be an integer of 64 bits, got {self.seed}")
        if self.threads > _MOST_THREADS:
            problems.append(f"threads must be at most {_MOST_THREADS}, got {self.threads}")
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
        if self.carry and self.evaluate_examples:
            problems.append(
                f"evaluate_examples={self.evaluate_examples} are windows from anywhere, and with carry whole documents "
                "are evaluated; leave it 0"
            )
        if (self.datastore is None) != (self.datastore_model is None):
            problems.append(
                "datastore and datastore_model go together: positions are looked up by what the model that made the "
                f"datastore makes of them; got {self.datastore!r} and {self.datastore_model!r}"
            )
        if problems:
            raise ConfigError("\n".join(problems))


AnyModelConfig = ModelConfig | EncoderConfig | EncoderDecoderConfig

SHAPES: dict[str, type[AnyModelConfig]] = {
    "text": ModelConfig,
    "recall": ModelConfig,
    "copy": ModelConfig,
    "masked": EncoderConfig,
    "classification": EncoderConfig,
    "translation": EncoderDecoderConfig,
    "images": ModelConfig,
    "super_resolution": EncoderDecoderConfig,
    "graph": EncoderConfig,
}
"""task -> the kind of model that is trained on it: a causal decoder, an encoder with a head, or an encoder-decoder"""


def default_model(task: TaskConfig) -> AnyModelConfig:
    """The model that a task is trained on where nothing is said.

    Of a graph, one that reads neighbours and no positions. Of images with classes, one with a vector in front that is
    read and with learned positions; of their pixels, one with local attention that knows rows and columns.

    Example:
        >>> type(default_model(TextConfig())).__name__
        'ModelConfig'

    Source: of images: Dosovitskiy et al. 2021, section 3.1; of pixels: Parmar et al. 2018, section 3.
    """
    if isinstance(task, ClassificationConfig) and not task.has_text:
        return EncoderConfig(cls_token=True, position="learned")
    if isinstance(task, ImagesConfig):
        local = {"position": "coordinates", "tied": False, "attention": ("image_local_1d",)}
        return EncoderDecoderConfig(**local) if isinstance(task, SuperResolutionConfig) else ModelConfig(**local)
    if isinstance(task, GraphConfig):
        return EncoderConfig(position="none", attention=("graph",))
    return SHAPES[task.name]()


@dataclass(frozen=True)
class RunConfig:
    """A training run, complete: model, task, training. Without a model it is `default_model` of the task. A model with
    a contrastive loss of hidden sentences has a task that hides some (`MaskedConfig.contrasting`).

    What goes in and out belongs to the task: when the run starts, the model's vocabulary, width of vectors and tokens
    that begin and end a sequence become the task's, and `model.max_length` at least the task's length
    (`regard_lab.training.network.fitted`); config.toml says what they became. With `model.memory`, `model.max_length`
    is the length of a segment and stays as it is: it must be less than the task's length, unless memories are carried.

    Raises:
        ConfigError: a model of a kind that cannot do the task.

    Example:
        >>> from regard_lab.tasks import MaskedConfig
        >>> type(RunConfig(task=MaskedConfig()).model).__name__
        'EncoderConfig'
    """

    model: AnyModelConfig = None  # type: ignore[assignment]  # until the task is known
    task: TaskConfig = field(default_factory=TextConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @typed
    def __post_init__(self) -> None:
        if self.model is None:
            object.__setattr__(self, "model", default_model(self.task))
        if isinstance(self.task, MaskedConfig) and getattr(self.model, "cpc_weight", 0):
            object.__setattr__(self, "task", self.task.contrasting())
        wanted = SHAPES[self.task.name]
        if type(self.model) is not wanted:
            raise ConfigError(
                f"task {self.task.name} trains a model of kind {wanted.__name__}, got {type(self.model).__name__}; "
                f"give a {wanted.__name__}, or a task for this one: "
                f"{', '.join(name for name, kind in SHAPES.items() if kind is type(self.model)) or 'none'}"
            )
