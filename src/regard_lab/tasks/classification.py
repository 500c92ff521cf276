"""Classification: the class of a whole text or image."""

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from regard.core.errors import ConfigError, DataError
from regard.text.tokenizer import Tokenizer, build_tokenizer
from regard_lab.tasks.base import SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import TEXT_CLASSES, TOYS, ClassificationConfig
from regard_lab.tasks.corpus import bundled_rows, held_out
from regard_lab.tasks.images import Images, read_images
from regard_lab.tasks.labelled import Labelled, read_labelled
from regard_lab.tasks.sentences import in_front, sentence_numbers
from regard_lab.tasks.toys import SHAPES, toy_images

ERAS = (("1790 to 1860", 1860), ("1861 to 1932", 1932), ("since 1933", 9999))
"""Eras of addresses and the last year of each: before the Civil War, up to the New Deal, and since."""
_MORE = "choose fewer classes (--task.num-classes) or a larger --task.holdout"
_OTHERS = "give texts that are not in the test file"
TUNE_LOST = "失调名"
"""Stands for the tune of poems whose tune is not known: no class."""


class ClassificationTask(Task):
    """The class of a sequence; `classes` has their names, and an example has one target, the number of its class."""

    name: ClassVar[str] = "classification"
    metric: ClassVar = "accuracy"

    @abstractmethod
    def examples(self, split: Split) -> "Texts | Patches": ...

    def _require_split(self, split: Split) -> None:
        if split not in SPLITS:
            raise ConfigError(f"task {self.name}: there is no split {split!r}; splits are {', '.join(SPLITS)}")


class TextClassificationTask(ClassificationTask):
    """The class of a text of a bundled corpus, or of a file.

    state_of_the_union: the era of an address (`ERAS`); the addresses of a president are all in one split, and every era
    holds out presidents of its own. song_ci: the tune of a poem, one of the `num_classes` most frequent ones; the poems
    of an author are all in one split, and a training poem that a held-out author is also credited with is left out.
    A file (.jsonl, .csv, .parquet): the label in each row; each class is split on its own, and equal texts are in one
    split. With `test`, all rows of that file are the test, and none of their texts is in another split.

    An example is the separator, where a head for the whole sequence may look, and at most length - 1 tokens; a longer
    text is several examples with one class and one `Example.document`. Its marks make the separator global; with
    `summaries`, so are the tokens behind it that stand for a sentence each, which are no tokens of the tokenizer.

    Args:
        config: corpus, tokenizer, length, classes.
        tokenizer: an earlier run's, instead of the one that the configuration describes.

    Raises:
        ConfigError: no such corpus; more classes than tunes; a holdout of 0.
        DataError: a class that is not in every split; as `read_labelled`. UnsupportedError: as `read_labelled`.

    Example:
        >>> TextClassificationTask(ClassificationConfig(data="song_ci", num_classes=3)).classes
        ('浣溪沙', '水调歌头', '鹧鸪天')
    """

    def __init__(self, config: ClassificationConfig, *, tokenizer: Tokenizer | None = None):
        self.config = config
        self.length = config.length + config.summaries
        if config.holdout == 0:
            raise ConfigError("task classification: holdout=0 is for images, which have a test set; give a share")
        splits, self.classes = _texts(config)
        training = (text.text for text in splits["train"])
        self.tokenizer: Tokenizer = tokenizer or build_tokenizer(config.tokenizer, config.vocab_size, training)
        self.vocab_size = self.tokenizer.vocab_size + (config.summaries > 0)
        for split, kept in splits.items():
            if split == "test" and config.test is not None:
                continue  # it is as it was given
            absent = set(self.classes) - {text.label for text in kept}
            if absent:
                raise DataError(
                    f"{config.data}: the {split} split has no text of class {', '.join(sorted(absent)):.300}; "
                    f"{_MORE if config.test is None else _OTHERS}"
                )
        number = {name: at for at, name in enumerate(self.classes)}
        self._splits = {
            split: Texts.cut(
                [self.tokenizer.encode(text.text) for text in kept],
                [number[text.label] for text in kept],
                config.length,
                self.tokenizer,
                summaries=config.summaries,
            )
            for split, kept in splits.items()
        }
        content = [[split, *text] for split, kept in splits.items() for text in kept]
        described = json.dumps([content, self.classes, self.tokenizer.to_json(), config.length])
        described += f" summaries={config.summaries}" if config.summaries else ""
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()[:32]

    def examples(self, split: Split) -> "Texts":
        self._require_split(split)
        return self._splits[split]


@dataclass(frozen=True)
class Texts:
    """Documents cut into pieces. pieces: (document, first token) of each. summaries: most sentences of a piece with a
    token in front.
    """

    ids: Sequence[Int64[np.ndarray, "tokens"]]
    labels: Sequence[int]
    pieces: Int64[np.ndarray, "examples 2"]
    length: int
    tokenizer: Tokenizer
    summaries: int = 0

    @classmethod
    def cut(
        cls,
        ids: Sequence[np.ndarray],
        labels: Sequence[int],
        length: int,
        tokenizer: Tokenizer,
        *,
        summaries: int = 0,
    ) -> "Texts":
        """Pieces of length - 1 tokens at most."""
        pieces = [(row, at) for row, text in enumerate(ids) for at in range(0, len(text), length - 1)]
        return cls(ids, labels, np.array(pieces, np.int64).reshape(-1, 2), length, tokenizer, summaries)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Example:
        document, at = (int(x) for x in self.pieces[checked_index(index, len(self))])
        inputs = self.ids[document][at : at + self.length - 1].astype(np.int64)
        marks = np.zeros_like(inputs)
        if self.summaries:
            numbers = sentence_numbers(inputs, self.tokenizer, self.summaries)
            inputs, marks = in_front(inputs, numbers, self.tokenizer.vocab_size)
        # The separator is a global token of a segment that has no tokens.
        inputs, marks = (
            np.concatenate([[first], values])
            for first, values in ((self.tokenizer.separator, inputs), (-self.summaries - 1, marks))
        )
        return Example(inputs, np.array([self.labels[document]]), document, 0, marks=marks)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @property
    def targets(self) -> Int64[np.ndarray, "examples"]:
        """The class of every example."""
        return np.array(self.labels, np.int64)[self.pieces[:, 0]]

    def text(self, index: int) -> str:
        """The text of an example; a character that is cut at its end becomes U+FFFD."""
        document, at = self.pieces[checked_index(index, len(self))]
        return self.tokenizer.decode(self.ids[document][at : at + self.length - 1])


class ImageClassificationTask(ClassificationTask):
    """The class of an image in a local file, such as Fashion-MNIST's, or of a generated one (`shapes`).

    An example is the image cut into squares of `patch`, row by row, each a vector of its values channel by channel (the
    order of `regard.models.encoder.patches`), shifted and scaled by the mean and standard deviation of all training
    images. Validation is the share `holdout` of the training images, the first ones by hash of their number; the test
    is the file's.

    Args:
        config: file, patch, holdout.

    Raises:
        DataError: as `read_images`; images of one class only.
        ConfigError: a patch that does not divide the sides.

    Example:
        >>> ImageClassificationTask(ClassificationConfig(data="shapes")).examples("train")[0].inputs.shape
        (16, 16)

    Source: patches: Dosovitskiy et al. 2021, section 3.1.
    """

    vocab_size = 0

    def __init__(self, config: ClassificationConfig):
        self.config = config
        path = Path(config.data).expanduser()
        train, test = toy_images() if config.data == TOYS else read_images(path)
        height, width, *channels = train.images.shape[1:]
        if height % config.patch or width % config.patch:
            raise ConfigError(
                f"task classification: patch={config.patch} must divide the sides of the images in {path}, "
                f"{height} and {width}"
            )
        self.length = (height // config.patch) * (width // config.patch)
        self.input_dim = config.patch**2 * (channels[0] if channels else 1)
        count = int(train.labels.max()) + 1
        if count < 2:
            raise DataError(f"{path}: all training images are of one class, so there is nothing to tell apart")
        named = FASHION if path.stem.startswith("fashion") and count == len(FASHION) else map(str, range(count))
        self.classes = SHAPES if config.data == TOYS else tuple(named)
        order = np.argsort([hashlib.sha256(str(at).encode()).digest() for at in range(len(train.labels))])
        held = np.zeros(len(order), bool)
        held[order[: round(config.holdout * len(order))]] = True
        parts = {"train": _chosen(train, ~held), "valid": _chosen(train, held) if held.any() else test, "test": test}
        # In parts: a float64 copy of all images at once would take eight times their memory.
        values = np.bincount(parts["train"].images.ravel(), minlength=256)
        levels = np.arange(256)
        mean = float((values * levels).sum() / values.sum())
        deviation = float((values * (levels - mean) ** 2).sum() / values.sum()) ** 0.5
        self._splits = {
            split: Patches(part.images, part.labels, config.patch, mean, max(deviation, 1.0))
            for split, part in parts.items()
        }
        digest = hashlib.sha256(json.dumps([config.patch, config.holdout]).encode())
        for part in (train, test):
            digest.update(part.images.tobytes())
            digest.update(part.labels.tobytes())
        self.fingerprint = digest.hexdigest()[:32]

    def examples(self, split: Split) -> "Patches":
        self._require_split(split)
        return self._splits[split]


@dataclass(frozen=True)
class Patches:
    """Images as rows of squares, (value - mean) / deviation."""

    images: UInt8[np.ndarray, "count height width *channels"]
    labels: Int64[np.ndarray, "count"]
    patch: int
    mean: float
    deviation: float

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        index = checked_index(index, len(self))
        inputs = self.cut(self.images[index : index + 1])[0]
        return Example(inputs, self.labels[index : index + 1], index, 0)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @property
    def targets(self) -> Int64[np.ndarray, "count"]:
        """The class of every example."""
        return self.labels

    def cut(
        self, images: UInt8[np.ndarray, "batch height width *channels"]
    ) -> Float32[np.ndarray, "batch patches content"]:
        """Images as a model reads them."""
        count, height, width = images.shape[:3]
        size = self.patch
        squares = images.reshape(count, height // size, size, width // size, size, -1).transpose(0, 1, 3, 5, 2, 4)
        scaled = (squares.astype(np.float32) - np.float32(self.mean)) / np.float32(self.deviation)
        return scaled.reshape(count, (height // size) * (width // size), -1)


FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Classes of Fashion-MNIST (Xiao, Rasul & Vollgraf 2017, table 2), which its files do not name."""


def classification_task(
    config: ClassificationConfig, *, tokenizer: Tokenizer | None = None
) -> TextClassificationTask | ImageClassificationTask:
    """The task that a configuration describes: of texts or of images.

    Raises:
        DataError, ConfigError, UnsupportedError: as the tasks.
    """
    for path in (config.data, config.test):
        if path is not None and path not in (*TEXT_CLASSES, TOYS) and not Path(path).expanduser().exists():
            raise DataError(
                f"there is no data {path!r}: no such file, and no bundled corpus or images of that name "
                f"({', '.join((*TEXT_CLASSES, TOYS))})"
            )
    return TextClassificationTask(config, tokenizer=tokenizer) if config.has_text else ImageClassificationTask(config)


def _texts(config: ClassificationConfig) -> tuple[dict[Split, list[Labelled]], tuple[str, ...]]:
    """The texts of every split, and the classes."""
    if config.data == "state_of_the_union":
        texts, classes = _addresses()
    elif config.data in TEXT_CLASSES:
        texts, classes = _poems(config.num_classes)
    else:
        texts, classes = read_labelled(Path(config.data).expanduser(), config.text_column, config.label_column)
    splits = _split(texts, config.holdout)
    if config.test is None:
        return splits, classes
    path = Path(config.test).expanduser()
    test, _ = read_labelled(path, *config.test_columns, classes=classes)
    tested = {text.text for text in test}
    valid = [text for text in splits["valid"] if text.text not in tested]
    train = [text for text in (*splits["train"], *splits["test"]) if text.text not in tested]
    return {"train": train, "valid": valid, "test": test}, classes


def _addresses() -> tuple[list[Labelled], tuple[str, ...]]:
    texts = []
    for year, president, text in bundled_rows("state_of_the_union"):
        era = next(name for name, last in ERAS if int(year) <= last)
        texts.append(Labelled(text, era, president, era))
    return texts, tuple(name for name, _ in ERAS)


def _poems(num_classes: int) -> tuple[list[Labelled], tuple[str, ...]]:
    poems = [Labelled(text, tune, author, "") for tune, author, text in bundled_rows("song_ci") if tune != TUNE_LOST]
    tunes = Counter(poem.label for poem in poems).most_common()
    if num_classes > len(tunes):
        raise ConfigError(f"task classification: song_ci has {len(tunes)} tunes, got num_classes={num_classes}")
    classes = tuple(tune for tune, _ in tunes[:num_classes])
    return [poem for poem in poems if poem.label in classes], classes


def _split(texts: Sequence[Labelled], holdout: float) -> dict[Split, list[Labelled]]:
    split_of: dict[str, Split] = {}
    for stratum in dict.fromkeys(text.stratum for text in texts):
        split_of |= held_out({text.author for text in texts if text.stratum == stratum}, holdout) or {}
    splits: dict[Split, list[Labelled]] = {split: [] for split in SPLITS}
    taken: set[str] = set()
    for split in reversed(SPLITS):  # some poems go under two authors: a text stays where it is held out
        splits[split] = [text for text in texts if split_of[text.author] == split and text.text not in taken]
        taken |= {text.text for text in splits[split]}
    return splits


def _chosen(images: Images, mask: np.ndarray) -> Images:
    return Images(images.images[mask], images.labels[mask])
