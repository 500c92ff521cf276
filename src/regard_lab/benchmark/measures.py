"""The measures of a comparison's tasks, and the mechanisms that can do them. Imports no torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Info
from regard.models.config import ModelConfig
from regard.models.encoder_config import EncoderConfig
from regard_lab.benchmark.config import CompareConfig, ShapeConfig
from regard_lab.tasks.config import MaskedConfig, TaskConfig

Metric = Literal["bits_per_byte", "accuracy"]
_REQUESTS = {"causal": "causal=True", "bidirectional": "causal=False", "key_mask": "key_mask"}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One training of every specification, and the number that is read from it.

    Args:
        name: of the training; the key of what it found in the results.
        subject: the name of its data, in a sentence.
        metric: the number that specifications are ranked by.
        noun: the name of that number, in a sentence.
        column: head of the summary table.
        share: of a budget, for all trainings; the rest is for timings, evaluation and the report.
        least_steps: no specification is trained for fewer, whatever the budget.
        causal: each position sees earlier ones only, and the model is a decoder.
    """

    name: Literal["text", "recall", "masked", "classification"]
    subject: str
    metric: Metric
    noun: str
    column: str
    share: float
    least_steps: int
    causal: bool

    @property
    def larger_is_better(self) -> bool:
        return self.metric == "accuracy"

    def shown(self, value: float) -> str:
        """The number and what it is, in a sentence."""
        return f"{value:.1%} {self.noun}" if self.larger_is_better else f"{value:.3f} {self.noun}"

    def option(self, config: CompareConfig, name: str) -> Any:
        """`steps`, `batch_size` or `learning_rate` of this training."""
        bare = self.name == "text" and name != "steps"
        return getattr(config, name if bare else f"{self.name}_{name}")

    def evaluated(self, config: CompareConfig) -> int:
        """Validation examples; 0: all."""
        return config.classification_evaluate_examples if self.name == "classification" else config.evaluate_examples

    def shape(self, config: CompareConfig) -> ShapeConfig:
        """The shape of the model."""
        return config.recall_shape if self.name == "recall" else config.shape

    def task(self, config: CompareConfig) -> TaskConfig:
        """The data."""
        if self.name == "masked":
            return MaskedConfig(**vars(config.text), rate=config.masked_rate)
        return getattr(config, self.name)

    def model(
        self, config: CompareConfig, attention: tuple[str, ...], *, max_length: int, seed: int
    ) -> ModelConfig | EncoderConfig:
        """The model, but for what the data decides."""
        shape = self.shape(config)
        settings: dict[str, Any] = {
            name: getattr(shape, name) for name in ("dim", "layers", "heads", "position", "mlp")
        }
        settings |= {"attention": attention, "max_length": max_length, "seed": seed}
        if self.causal:
            return ModelConfig(**settings, short_convolution=shape.short_convolution)
        # The mean over a sequence serves every mechanism: one position of its own would see no farther than a window.
        return EncoderConfig(**settings, pooling="mean")


TEXT = Measure(
    name="text",
    subject="text",
    metric="bits_per_byte",
    noun="bits per byte",
    column="bits/byte",
    share=0.38,
    least_steps=20,
    causal=True,
)
RECALL = Measure(
    name="recall",
    subject="recall",
    metric="accuracy",
    noun="recall",
    column="recall",
    share=0.32,
    # Exact attention learns recall in about 300 of the default steps; a comparison in which it has not says nothing.
    least_steps=450,
    causal=True,
)
MASKED = Measure(
    name="masked",
    subject="masked text",
    metric="bits_per_byte",
    noun="bits per masked byte",
    column="bits/masked byte",
    share=0.70,
    least_steps=20,
    causal=False,
)
CLASSIFICATION = Measure(
    name="classification",
    subject="classes",
    metric="accuracy",
    noun="accuracy",
    column="accuracy",
    share=0.70,
    least_steps=20,
    causal=False,
)

TASKS: dict[str, tuple[Measure, ...]] = {
    "lm": (TEXT, RECALL),
    "mlm": (MASKED,),
    "classify": (CLASSIFICATION,),
    "recall": (replace(RECALL, share=0.70),),
}
"""task of a comparison -> what is measured; the first decides, and its speed and memory are reported"""


def taken(task: str, steps: Collection[str]) -> tuple[Measure, ...]:
    """The measures of a comparison whose plan has steps for these: recall is left out where time is short."""
    return tuple(measure for measure in TASKS[task] if measure.name in steps)


_READERS = {
    "text": ("lm", "mlm"),
    "text_steps": ("lm",),
    "batch_size": ("lm",),
    "learning_rate": ("lm",),
    "ngram": ("lm",),
    "recall": ("lm", "recall"),
    "masked": ("mlm",),
    "classification": ("classify",),
    "baselines": ("classify",),
    "shape": ("lm", "mlm", "classify"),
    "evaluate_examples": ("lm", "mlm", "recall"),
}
"""a setting, or the word that its name begins with -> the tasks that read it; all read the others"""


def check_settings(config: CompareConfig, task: str) -> None:
    """Refuse settings that the task of the comparison does not read.

    Raises:
        ConfigError: settings of another task; the message says which, and whose they are.
    """
    default, problems = CompareConfig(), []
    for field in fields(CompareConfig):
        readers = _READERS.get(field.name) or _READERS.get(field.name.partition("_")[0])
        if readers and task not in readers and getattr(config, field.name) != getattr(default, field.name):
            problems.append(f"{field.name} is read by --task {_listed(readers)}, and this comparison is by {task}")
    if task == "recall" and not config.recall_steps:
        raise ConfigError("recall_steps must be at least 1 for --task recall, got 0")
    if problems:
        raise ConfigError("\n".join([*problems, "leave it out, or name the task"]))


def lacking(task: str, info: Info, config: CompareConfig) -> list[str]:
    """The requests of a task that a mechanism does not support."""
    needed = ["causal" if TASKS[task][0].causal else "bidirectional"]
    if task == "mlm" or (task == "classify" and config.classification.has_text):
        needed.append("key_mask")  # texts of unequal length
    return [_REQUESTS[name] for name in needed if name not in info.supports.names]


def chosen(config: CompareConfig, facts: dict[str, Info]) -> str:
    """The task of a comparison: the one that it names, else lm where all specifications can be causal, else mlm.

    Args:
        config: of the comparison.
        facts: about every mechanism.

    Raises:
        UnsupportedError: a mechanism that cannot do it; the message says which, and what all of them can do.
    """
    able = {task: [spec for spec in config.specs if not _unable(task, spec, config, facts)] for task in TASKS}
    common = [task for task, specs in able.items() if len(specs) == len(config.specs)]
    task = config.task or next((task for task in ("lm", "mlm") if task in common), None)
    if task is not None and task in common:
        return task
    problems = [
        f"{spec} cannot do {name}: {reason}"
        for name in ([task] if task else ["lm", "mlm"])
        for spec in config.specs
        for reason in _unable(name, spec, config, facts)
    ]
    way = (
        f"all of them can do --task {_listed(common)}"
        if common
        else "no task serves all of them; "
        + "; ".join(f"{name}: {', '.join(specs) or 'none'}" for name, specs in able.items())
    )
    raise UnsupportedError("\n".join([*problems, way]))


def _unable(task: str, spec: str, config: CompareConfig, facts: dict[str, Info]) -> list[str]:
    """Why a specification cannot do a task: one reason for each of its mechanisms."""
    parts = dict.fromkeys(config.layers(spec))
    return [
        f"{part} does not support {' and '.join(missing)}"
        for part in parts
        if (missing := lacking(task, facts[part], config))
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
