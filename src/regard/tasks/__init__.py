"""Data with a known answer: what models are trained on and compared by.

Names are imported on first use: the configurations cost nothing, the tasks need numpy, and only BPE needs `tokenizers`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.tasks.config import CopyConfig, RecallConfig, TaskConfig, TextConfig

_HOMES = {
    "IGNORE": "base",
    "Example": "base",
    "Examples": "base",
    "Split": "base",
    "Task": "base",
    "CopyTask": "copy",
    "RecallTask": "recall",
    "minimal_length": "recall",
    "TextTask": "text",
    "Tokenizer": "tokenizer",
    "load_tokenizer": "tokenizer",
    "ngram_bits_per_byte": "baselines",
    "xz_bits_per_byte": "baselines",
}

__all__ = [
    "IGNORE",
    "CopyConfig",
    "CopyTask",
    "Example",
    "Examples",
    "RecallConfig",
    "RecallTask",
    "Split",
    "Task",
    "TaskConfig",
    "TextConfig",
    "TextTask",
    "Tokenizer",
    "build_task",
    "load_tokenizer",
    "minimal_length",
    "ngram_bits_per_byte",
    "xz_bits_per_byte",
]

if TYPE_CHECKING:
    from regard.tasks.base import IGNORE, Example, Examples, Split, Task
    from regard.tasks.baselines import ngram_bits_per_byte, xz_bits_per_byte
    from regard.tasks.copy import CopyTask
    from regard.tasks.recall import RecallTask, minimal_length
    from regard.tasks.text import TextTask
    from regard.tasks.tokenizer import Tokenizer, load_tokenizer


def build_task(config: TaskConfig, *, seed: int = 0, tokenizer: "Tokenizer | None" = None) -> "Task":
    """The task that a configuration describes.

    Args:
        config: which task, and its options.
        seed: of the sequences of recall and copy. Text does not depend on it: its splits are the same for every run.
        tokenizer: text only: an earlier run's, instead of the one that the configuration describes.

    Raises:
        ConfigError: options that do not go together.
        DataError: text that is missing, malformed or too small.
        ResourceError: token files that cannot be written.

    Example:
        >>> task = build_task(RecallConfig(vocab_size=64, length=32, num_pairs=4))
        >>> task.examples("train")[7].inputs.shape
        (32,)
    """
    if isinstance(config, TextConfig):
        from regard.tasks.text import TextTask

        return TextTask(config, tokenizer=tokenizer)
    if tokenizer is not None:
        raise ConfigError(f"task {config.name} has no text: a tokenizer makes no sense for it; leave it out")
    if isinstance(config, RecallConfig):
        from regard.tasks.recall import RecallTask

        return RecallTask(config, seed=seed)
    from regard.tasks.copy import CopyTask

    return CopyTask(config, seed=seed)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.tasks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"regard.tasks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
