"""The settings of a comparison, as data. Imports no torch: the command line reads this first."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard import specs
from regard.core.errors import ConfigError
from regard.core.types_of import typed
from regard.models.config import MlpKind
from regard_lab.benchmark.threads import default_threads, require_threads
from regard_lab.tasks.config import ClassificationConfig, RecallConfig, TextConfig

FORMAT = 3
"""of results.json; changes whenever a reader would have to"""
MARK = "?"
"""of a figure that cannot be trusted, in tables"""
DEFAULT_SPECS = (
    "softmax",
    "local(window=32)",
    "linear",
    "performer",
    "linear / softmax",
    "vector_quantized(num_codes=64, block_size=32)",
)
"""exact attention, a window, two linear ones, a hybrid by layer, and one whose cache is used at the lengths compared"""
TaskName = Literal["lm", "mlm", "classify", "recall"]
BaselineKind = Literal["linear", "mlp", "lstm", "convolution"]


@dataclass(frozen=True)
class ShapeConfig:
    """The model that every mechanism is put into."""

    dim: int = 128
    """width of the hidden states"""
    layers: int = 2
    """blocks"""
    heads: int = 4
    """heads"""
    position: str = "sinusoidal"
    """position scheme; an absolute one serves every mechanism"""
    short_convolution: int = 4
    """width of the causal convolution over the embeddings of lm and recall: shallow models need it for recall, and
    learn text from far fewer tokens with it"""
    mlp: MlpKind = "gelu"
    """the MLP of a block; none to leave it out"""


@dataclass(frozen=True)
class CompareConfig:
    """A comparison: every specification in the same model, on the same data, for the same steps."""

    specs: tuple[str, ...] = DEFAULT_SPECS
    """mechanisms; `a / b` alternates by layer, `a:2 + b:2` mixes by head"""
    task: TaskName | None = None
    """lm: text and recall, with causal models; mlm: hidden tokens of text, and classify: classes of texts or images,
    with models that look both ways; recall: exact recall alone. None: lm if every specification can be
    causal, else mlm"""
    budget: str | None = None
    """time for everything, such as 5m, 90s or 2h; it sets the steps, may leave recall out, and is kept. None: the
    steps below, however long they take"""
    seeds: int = 3
    """trainings of every specification; from fewer than 3 nothing is recommended: trainings differ by chance"""
    text: TextConfig = field(default_factory=lambda: TextConfig(length=128))
    """the text of lm and mlm"""
    masked_rate: float = 0.15
    """share of the tokens that mlm hides and asks for"""
    classification: ClassificationConfig = field(default_factory=lambda: ClassificationConfig(length=128))
    """the texts or images of classify"""
    recall: RecallConfig = field(
        default_factory=lambda: RecallConfig(vocab_size=64, length=128, num_pairs=8, filler="zeros", num_held_out=500)
    )
    """the recall task (MQAR)"""
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    """the model, but for recall"""
    recall_shape: ShapeConfig = field(default_factory=lambda: ShapeConfig(dim=64, mlp="none", short_convolution=2))
    """the model for recall; as published, two layers without MLP"""
    text_steps: int = 1000
    """training steps on text, without a budget"""
    recall_steps: int = 600
    """training steps on recall, without a budget; 0: lm leaves it out"""
    masked_steps: int = 1000
    """training steps of mlm, without a budget"""
    classification_steps: int = 1000
    """training steps of classify, without a budget"""
    batch_size: int = 4
    """text windows in a step"""
    recall_batch_size: int = 16
    """recall sequences in a step"""
    masked_batch_size: int = 16
    """text windows in a step of mlm"""
    classification_batch_size: int = 32
    """texts or images in a step"""
    learning_rate: float = 4e-3
    """peak learning rate on text"""
    recall_learning_rate: float = 3e-3
    """peak learning rate on recall"""
    masked_learning_rate: float = 2e-3
    """peak learning rate of mlm"""
    classification_learning_rate: float = 1e-3
    """peak learning rate of classify, for specifications and baselines"""
    evaluate_examples: int = 400
    """validation windows or sequences, evenly spaced; 0: all"""
    classification_evaluate_examples: int = 2000
    """validation texts or images, evenly spaced; 0: all"""
    baselines: tuple[BaselineKind, ...] = ("linear", "mlp", "lstm", "convolution")
    """models without attention that classify trains for as many seconds as a specification; they share its width"""
    ngram: int = 3
    """bytes in the n-grams of the baseline, which is trained on the same windows"""
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    """sequence lengths for cost and decoding"""
    rounds: int = 5
    """timed turns for every length"""
    threads: int = field(default_factory=default_threads)
    """CPU threads; by default OMP_NUM_THREADS, else all cores"""

    @typed
    def __post_init__(self) -> None:
        kinds = ("text", "recall", "masked", "classification")
        sizes = [f"{kind}_steps" for kind in kinds] + ["batch_size", *(f"{kind}_batch_size" for kind in kinds[1:])]
        rates = ["learning_rate", *(f"{kind}_learning_rate" for kind in kinds[1:])]
        require_threads(self.threads)
        problems = [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in ("seeds", *sizes, "rounds", "threads")
            if getattr(self, name) < (name != "recall_steps")
        ]
        problems += [
            f"{name} must be positive, got {getattr(self, name)}"
            for name in rates
            if not 0 < getattr(self, name) < float("inf")
        ]
        problems += [
            f"{name} must be at least 0 (all), got {getattr(self, name)}"
            for name in ("evaluate_examples", "classification_evaluate_examples")
            if getattr(self, name) < 0
        ]
        if not 0 < self.masked_rate < 1:
            problems.append(f"masked_rate must be more than 0 and less than 1, got {self.masked_rate}")
        if len(set(self.baselines)) != len(self.baselines):
            problems.append(f"baselines must differ from one another, got {list(self.baselines)}")
        if not 1 <= self.ngram <= 7:
            problems.append(f"ngram must be from 1 to 7, got {self.ngram}")
        if not self.specs:
            problems.append("specs must name at least one mechanism")
        if len(set(self.specs)) != len(self.specs):
            problems.append(f"specs must differ from one another, got {list(self.specs)}")
        if not self.lengths or min(self.lengths) < 32:
            problems.append(f"lengths must be at least 32, got {list(self.lengths)}")
        if self.shape.layers != self.recall_shape.layers:
            problems.append(
                "shape.layers and recall_shape.layers must agree, "
                f"got {self.shape.layers} and {self.recall_shape.layers}"
            )
        if problems:
            raise ConfigError("\n".join(problems))
        for spec in self.specs:
            self.layers(spec)
        if self.budget is not None:
            seconds(self.budget)

    def layers(self, spec: str) -> tuple[str, ...]:
        """The mechanism of every layer: `a / b` starts again when it is used up.

        Raises:
            ConfigError: more parts than layers.
        """
        parts = specs.split(spec, "/")
        if len(parts) > self.shape.layers:
            raise ConfigError(f"{spec!r} names {len(parts)} layers, the model has {self.shape.layers}")
        return tuple(parts[at % len(parts)] for at in range(self.shape.layers))

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Every mechanism that some layer uses, exact attention first: costs are relative to it."""
        return tuple(dict.fromkeys(["softmax", *(part for spec in self.specs for part in self.layers(spec))]))


QUICK: dict[str, Any] = {
    "budget": "60s",
    "seeds": 1,
    "lengths": (256, 512, 1024, 2048),
    "rounds": 3,
    "evaluate_examples": 100,
}
"""what `quick` changes, where it is the default"""


def quick(config: CompareConfig) -> CompareConfig:
    """The comparison in a minute: a first look, whose differences are between models that learned little.

    Raises:
        ConfigError: it has a budget.
    """
    if config.budget is not None:
        raise ConfigError(f"--quick is a budget of {QUICK['budget']}, and --budget {config.budget} another; give one")
    default = CompareConfig()
    changed = {name: value for name, value in QUICK.items() if getattr(config, name) == getattr(default, name)}
    return replace(config, **changed)


def seconds(duration: str) -> float:
    """A duration in seconds.

    Raises:
        ConfigError: not a number and s, m or h; the message says what to write.

    Example:
        >>> seconds("5m")
        300.0
    """
    text = duration.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is not None and 0 < float(match[1]) < float("inf"):
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    number = re.search(r"\d+(?:\.\d+)?", text)
    unit = re.search(r"[smh]", text)
    if number is None or float(number[0]) <= 0:
        way = "write 90s, 5m or 2h"
    elif unit is None:
        way = f"its unit is missing; write {number[0]}s, {number[0]}m or {number[0]}h"
    else:
        way = f"write {number[0]}{unit[0]}: a number and s, m or h, and nothing else"
    raise ConfigError(f"cannot read the duration {duration!r}: {way}")
