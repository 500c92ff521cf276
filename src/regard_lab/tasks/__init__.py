"""Data with a known answer: what models are trained on and compared by.

Names are imported on first use: the configurations cost nothing, the tasks need numpy, and only BPE needs `tokenizers`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from regard.core.errors import ConfigError
from regard_lab.tasks.config import (
    ClassificationConfig,
    CopyConfig,
    GraphConfig,
    ImagesConfig,
    MaskedConfig,
    RecallConfig,
    SuperResolutionConfig,
    TaskConfig,
    TextConfig,
    TranslationConfig,
)

_HOMES = {
    "IGNORE": "base",
    "Example": "base",
    "Examples": "base",
    "ImageClassificationTask": "classification",
    "ImagesTask": "pixels",
    "SuperResolutionTask": "pixels",
    "MaskedTask": "masked",
    "TextClassificationTask": "classification",
    "TranslationTask": "translation",
    "Redrawn": "base",
    "Split": "base",
    "Task": "base",
    "CopyTask": "copy",
    "GraphTask": "graph",
    "RecallTask": "recall",
    "minimal_length": "recall",
    "TextTask": "text",
    "ngram_bits_per_byte": "baselines",
    "xz_bits_per_byte": "baselines",
}

__all__ = [
    "IGNORE",
    "ClassificationConfig",
    "CopyConfig",
    "CopyTask",
    "Example",
    "Examples",
    "GraphConfig",
    "GraphTask",
    "ImageClassificationTask",
    "ImagesConfig",
    "ImagesTask",
    "MaskedConfig",
    "MaskedTask",
    "RecallConfig",
    "RecallTask",
    "Redrawn",
    "Split",
    "SuperResolutionConfig",
    "SuperResolutionTask",
    "Task",
    "TaskConfig",
    "TextClassificationTask",
    "TextConfig",
    "TextTask",
    "TranslationConfig",
    "TranslationTask",
    "build_task",
    "has_text",
    "minimal_length",
    "ngram_bits_per_byte",
    "xz_bits_per_byte",
]

if TYPE_CHECKING:
    from regard.text.reader import Reader
    from regard.text.tokenizer import Tokenizer
    from regard_lab.tasks.base import IGNORE, Example, Examples, Redrawn, Split, Task
    from regard_lab.tasks.baselines import ngram_bits_per_byte, xz_bits_per_byte
    from regard_lab.tasks.classification import ImageClassificationTask, TextClassificationTask
    from regard_lab.tasks.copy import CopyTask
    from regard_lab.tasks.graph import GraphTask
    from regard_lab.tasks.masked import MaskedTask
    from regard_lab.tasks.pixels import ImagesTask, SuperResolutionTask
    from regard_lab.tasks.recall import RecallTask, minimal_length
    from regard_lab.tasks.text import TextTask
    from regard_lab.tasks.translation import TranslationTask


def build_task(config: TaskConfig, *, seed: int = 0, tokenizer: "Reader | None" = None) -> "Task":
    """The task that a configuration describes.

    Args:
        config: its options, in the task's own class.
        seed: of the sequences of recall and copy, and of the masks that masked trains on. Nothing else depends on it:
            splits are the same for every run.
        tokenizer: of tasks on text: an earlier run's, instead of the one that the configuration describes.

    Raises:
        ConfigError: options that do not go together; a published tokenizer for another task than text.
        DataError: text or images that are missing, malformed or too small.
        ResourceError: token files that cannot be written.

    Example:
        >>> task = build_task(RecallConfig(vocab_size=64, length=32, num_pairs=4))
        >>> task.examples("train")[7].inputs.shape
        (32,)
    """
    if tokenizer is not None and not has_text(config):
        raise ConfigError(f"task {config.name} has no text: a tokenizer makes no sense for it; leave it out")
    if isinstance(config, TextConfig) and not isinstance(config, MaskedConfig):
        from regard_lab.tasks.text import TextTask

        return TextTask(config, tokenizer=tokenizer)
    own = None if tokenizer is None else _own(config, tokenizer)
    if isinstance(config, MaskedConfig):
        from regard_lab.tasks.masked import MaskedTask

        return MaskedTask(config, seed=seed, tokenizer=own)
    if isinstance(config, TranslationConfig):
        from regard_lab.tasks.translation import TranslationTask

        return TranslationTask(config, tokenizer=own)
    if isinstance(config, ClassificationConfig):
        from regard_lab.tasks.classification import classification_task

        return classification_task(config, tokenizer=own)
    if isinstance(config, SuperResolutionConfig):
        from regard_lab.tasks.pixels import SuperResolutionTask

        return SuperResolutionTask(config)
    if isinstance(config, ImagesConfig):
        from regard_lab.tasks.pixels import ImagesTask

        return ImagesTask(config)
    if isinstance(config, GraphConfig):
        from regard_lab.tasks.graph import GraphTask

        return GraphTask(config)
    if isinstance(config, RecallConfig):
        from regard_lab.tasks.recall import RecallTask

        return RecallTask(config, seed=seed)
    from regard_lab.tasks.copy import CopyTask

    return CopyTask(config, seed=seed)


def _own(config: TaskConfig, tokenizer: "Reader") -> "Tokenizer":
    """The tokenizer, if it has a separator, which every task but text gives a place of its own."""
    from regard.text.tokenizer import Tokenizer

    if not isinstance(tokenizer, Tokenizer):
        raise ConfigError(
            f"task {config.name} needs a token that no text can hold, and a {tokenizer.kind} tokenizer has none: use "
            "bytes or bpe, or the task text"
        )
    return tokenizer


def has_text(config: TaskConfig) -> bool:
    """Whether a task reads text, so that it has a tokenizer."""
    if isinstance(config, ClassificationConfig):
        return config.has_text
    return isinstance(config, TextConfig | TranslationConfig)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard_lab.tasks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard_lab.tasks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
