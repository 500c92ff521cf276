"""The network of a run, and what belongs to it beside its weights."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from regard.core.errors import CheckpointError, ConfigError
from regard.files.folders import write_json
from regard.files.reading import content
from regard.models import LanguageModel
from regard.models.config import ModelConfig
from regard.models.encoder import Encoder
from regard.models.encoder_config import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.heads import Classifier, MaskedLanguageModel
from regard.text.tokenizer import Tokenizer
from regard_lab.tasks.base import Task
from regard_lab.tasks.graph import GraphTask
from regard_lab.tasks.pixels import Grid, ImagesTask, without_shape
from regard_lab.training.config import AnyModelConfig

Network = LanguageModel | MaskedLanguageModel | Classifier | EncoderDecoder


@dataclass(frozen=True)
class Labels:
    """The classes of a classifier. The rest is how it reads images, as `Patches` does; patch 0: it reads text."""

    classes: tuple[str, ...]
    patch: int = 0
    patches: int = 0
    mean: float = 0.0
    deviation: float = 1.0

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Labels":
        """Read what `save` wrote.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        values = read_json(path)
        try:
            return cls(**{**values, "classes": tuple(values["classes"])})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error!r}; restore it, or start a new run") from error


def labels(task: Task) -> Labels | None:
    """The labels that a run on this task writes beside its weights; None where targets are tokens."""
    if not task.classes:
        return None
    if not task.input_dim:
        return Labels(task.classes)
    images: Any = task.examples("train")
    return Labels(task.classes, images.patch, task.length, images.mean, images.deviation)


def save_grid(grid: Grid, path: Path) -> None:
    """Write the shape and order of the images of a run."""
    write_json(path, asdict(grid))


def load_grid(path: Path) -> Grid:
    """Read what `save_grid` wrote.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    values = read_json(path)
    try:
        block = values["query_block"]
        return Grid(**{**values, "query_block": None if block is None else tuple(block)})
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}; restore it, or start a new run") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        return json.loads(content(path))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}; restore it, or start a new run") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error!r}; restore it, or start a new run") from error


def build(config: AnyModelConfig, classes: int = 0) -> Network:
    """The network of a configuration, with new weights.

    Args:
        config: its shape.
        classes: how many an encoder tells apart; 0: it predicts masked tokens.

    Raises:
        ConfigError, UnsupportedError: as the models.

    Example:
        >>> type(build(EncoderConfig(dim=32), classes=3)).__name__
        'Classifier'
    """
    if isinstance(config, ModelConfig):
        return LanguageModel(config)
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config)
    encoder = Encoder(config)
    return Classifier(encoder, classes=classes) if classes else MaskedLanguageModel(encoder)


def fitted(config: AnyModelConfig, task: Task) -> AnyModelConfig:
    """The configuration with what the task decides: vocabulary, targets, ends of a sequence, shape of images, room.

    `max_length` becomes at least the task's length, except with a memory, where it is the length of a segment.

    Raises:
        ConfigError: a mechanism for images of another shape or order than the task's; a vector in front of a graph.
    """
    segmented = isinstance(config, ModelConfig) and config.remembers
    longest = config.max_length if segmented else max(config.max_length, task.length)
    if isinstance(task, ImagesTask) and not isinstance(config, EncoderConfig):
        grid = task.grid
        seen = {"vocab_size": grid.tokens, "targets": grid.levels, "tied": False, "max_length": longest}
        seen |= {"attention": tuple(grid.placed(spec) for spec in config.attention)}
        seen |= {"position": grid.located(config.position)}
        if isinstance(config, EncoderDecoderConfig):
            # The encoder reads a smaller image, so with another width than the decoder's.
            position = without_shape(config.position) if config.encoder_position is None else config.encoder_position
            seen |= {"encoder_position": grid.smaller(task.factor).located(position)}
            seen |= {"source_vocab_size": None, "start_token": grid.start, "end_token": grid.start}
        return replace(config, **seen)
    if isinstance(config, EncoderDecoderConfig):
        assert isinstance(task.tokenizer, Tokenizer)
        end = task.tokenizer.separator
        return replace(
            config,
            vocab_size=task.vocab_size,
            targets=None,
            source_vocab_size=None,
            start_token=end,
            end_token=end,
            max_length=longest,
        )
    if isinstance(config, EncoderConfig):
        longest = max(config.max_length, task.length + config.cls_token)
        if isinstance(task, GraphTask):
            if config.cls_token:
                raise ConfigError("cls_token puts a vector in front of the nodes of a graph, whose edges count from 0")
            config = replace(config, attention=tuple(task.placed(spec) for spec in config.attention))
        return replace(config, vocab_size=task.vocab_size, input_dim=task.input_dim, max_length=longest)
    return replace(config, vocab_size=task.vocab_size, targets=None, max_length=longest)


def sizes(model: Network) -> tuple[int, int]:
    """Token ids that a network reads (0: it reads vectors), and targets that it tells apart."""
    if isinstance(model, Classifier):
        return model.encoder.config.vocab_size, model.output.out_features
    if isinstance(model, MaskedLanguageModel):
        return model.encoder.config.vocab_size, model.encoder.config.vocab_size
    return model.config.vocab_size, model.config.targets or model.config.vocab_size
