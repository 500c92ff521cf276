"""Translation: read a sentence in one language, write it in another."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int64

from regard.core.errors import ConfigError, DataError, nearest
from regard.text.tokenizer import Tokenizer, build_tokenizer
from regard_lab.tasks.base import SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import TranslationConfig
from regard_lab.tasks.corpus import bundled_rows, held_out
from regard_lab.tasks.text_files import read_text

BUNDLED = "new_testament.en-es"
HOLDOUT = 0.05

BOOKS = (
    ("Matthew", 1071), ("Mark", 678), ("Luke", 1150), ("John", 879), ("Acts", 1003), ("Romans", 430),
    ("1 Corinthians", 437), ("2 Corinthians", 256), ("Galatians", 149), ("Ephesians", 155), ("Philippians", 104),
    ("Colossians", 95), ("1 Thessalonians", 89), ("2 Thessalonians", 47), ("1 Timothy", 113), ("2 Timothy", 83),
    ("Titus", 46), ("Philemon", 25), ("Hebrews", 303), ("James", 108), ("1 Peter", 105), ("2 Peter", 61),
    ("1 John", 105), ("2 John", 13), ("3 John", 14), ("Jude", 25), ("Revelation", 404),
)  # fmt: skip
"""The lines of each book in the bundled verses, which are in canonical order and do not mark books. They are the known
numbers of verses, but for nine verses that one of the two texts leaves out: one of Luke, four of Acts, three of Romans
and one of 2 Corinthians."""

HELD_OUT: dict[str, Split] = {"Hebrews": "valid", "James": "valid", "Acts": "test"}
"""The other books train. Matthew, Mark and Luke tell the same events in nearly the same words, so do 2 Peter and Jude,
and Ephesians and Colossians: none of these can be held out from the others."""


class Pair(NamedTuple):
    """A sentence and its translation. document: the book or file part it belongs to."""

    source: str
    target: str
    document: str


@dataclass(frozen=True)
class Sentences:
    """The pairs of a split, as examples.

    pairs: as text, in the order of the examples. sources, targets: their tokens, without ends.
    """

    pairs: tuple[Pair, ...]
    sources: tuple[Int64[np.ndarray, "source"], ...]
    targets: tuple[Int64[np.ndarray, "target"], ...]
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        index = checked_index(index, len(self))
        end = np.array([self.tokenizer.separator])
        target = self.targets[index]
        labels = np.concatenate([target, end])
        return Example(
            inputs=np.concatenate([end, target]),
            targets=labels,
            document=index,
            nbytes=int(self.tokenizer.sizes[labels].sum()),
            source=np.concatenate([self.sources[index], end]),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))


class TranslationTask(Task):
    """Translation of sentences.

    An example holds the source's tokens and an end; the target inputs, a start and the target's tokens; and as labels
    the target's tokens and an end. Start and end are the tokenizer's separator, which no text holds. Batches pad on the
    right and mask the padding of both sides. `Example.document` is the pair: sentences are what a bootstrap resamples.

    Whole documents are held out. The bundled verses (English to Spanish) do not say where books begin: they are cut by
    the number of lines of each book (`BOOKS`), and Hebrews and James validate, Acts tests, the other 24 books train. A
    file's third column names documents; without one its last lines are held out, in one piece. A pair that shares its
    source or target with a held-out one does not train. Pairs of more than `length` tokens on a side are left out of
    every split; `left_out` counts both kinds.

    Args:
        config: corpus, tokenizer, length.
        tokenizer: an earlier run's, instead of the one that the configuration describes.

    Raises:
        DataError: no such file, a malformed line (with its number), or too little in it.
        ConfigError: `holdout` for the bundled verses.

    Example:
        >>> task = TranslationTask(TranslationConfig(tokenizer="bytes", length=256))
        >>> task.examples("train").pairs[0].target
        'LIBRO de la generación de Jesucristo, hijo de David, hijo de Abraham.'

    Source: Vaswani et al. 2017, section 3.1 (shifted targets); bootstrap over sentences: Koehn 2004.
    """

    name: ClassVar[str] = "translation"
    metric: ClassVar = "bits_per_byte"

    def __init__(self, config: TranslationConfig, *, tokenizer: Tokenizer | None = None):
        self.config = config
        self.length = config.length
        pairs = _without_leaks(_bundled(config) if config.corpus == BUNDLED else _file(config))
        texts = (text for pair in pairs["train"] for text in (pair.source, pair.target))
        self.tokenizer: Tokenizer = tokenizer or build_tokenizer(config.tokenizer, config.vocab_size, texts)
        self.vocab_size = self.tokenizer.vocab_size
        self.left_out: dict[Split, int] = {}
        self._splits = {split: self._fitting(split, pairs[split]) for split in SPLITS}
        content = [[split, *pair] for split in SPLITS for pair in pairs[split]]
        described = json.dumps([content, self.tokenizer.to_json(), config.length])
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()[:32]

    def examples(self, split: Split) -> Sentences:
        if split not in self._splits:
            raise ConfigError(f"task translation: there is no split {split!r}; splits are {', '.join(SPLITS)}")
        return self._splits[split]

    def _fitting(self, split: Split, pairs: Sequence[Pair]) -> Sentences:
        sources = [self.tokenizer.encode(pair.source) for pair in pairs]
        targets = [self.tokenizer.encode(pair.target) for pair in pairs]
        fits = [max(len(a), len(b)) < self.length for a, b in zip(sources, targets, strict=True)]
        self.left_out[split] = len(pairs) - sum(fits)
        if not any(fits):
            raise DataError(
                f"{self.config.corpus}: the {split} split has {len(pairs)} pairs and none fits {self.length} tokens on "
                "each side; give more lines, or a larger --task.length"
            )
        return Sentences(
            tuple(compress(pairs, fits)),
            tuple(compress(sources, fits)),
            tuple(compress(targets, fits)),
            self.tokenizer,
        )


def _bundled(config: TranslationConfig) -> dict[Split, list[Pair]]:
    if config.holdout is not None:
        raise ConfigError(
            f"task translation: holdout={config.holdout} is for a file; {BUNDLED} holds out the same books: "
            f"{', '.join(HELD_OUT)}; leave it out"
        )
    rows = list(bundled_rows(BUNDLED))
    assert len(rows) == sum(lines for _, lines in BOOKS)
    pairs: dict[Split, list[Pair]] = {split: [] for split in SPLITS}
    at = iter(rows)
    for book, lines in BOOKS:
        pairs[HELD_OUT.get(book, "train")] += [Pair(source, target, book) for source, target in islice(at, lines)]
    return pairs


def _file(config: TranslationConfig) -> dict[Split, list[Pair]]:
    path, holdout = Path(config.corpus).expanduser(), config.holdout or HOLDOUT
    if not path.exists():
        raise DataError(
            f"there is no corpus {config.corpus!r}: no such file, and no bundled verses of that name; "
            f"{nearest(config.corpus, [BUNDLED])}"
        )
    if path.suffix != ".tsv":
        raise DataError(
            f"{config.corpus}: translation reads .tsv files, not {path.suffix or 'this'}; see --task.corpus"
        )
    rows = _rows(path)
    if len(rows[0]) == 3:
        split_of = held_out({row[2] for row in rows}, holdout)
        if split_of is None:
            raise DataError(
                f"{path} names fewer than three documents in its third column, but train, valid and test need one "
                "each; name more, or leave the column out"
            )
        named = [Pair(source, target, document) for source, target, document in rows]
        return {split: [pair for pair in named if split_of[pair.document] == split] for split in SPLITS}
    lines = max(1, round(holdout * len(rows)))
    if len(rows) <= 2 * lines:
        raise DataError(f"{path} has {len(rows)} lines, too few for train, valid and test; give more")
    cuts = {"train": (0, -2 * lines), "valid": (-2 * lines, -lines), "test": (-lines, len(rows))}
    return {split: [Pair(source, target, split) for source, target in rows[slice(*cuts[split])]] for split in SPLITS}


def _rows(path: Path) -> list[list[str]]:
    rows: list[list[str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):  # str.splitlines also cuts at U+2028 and others
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split("\t")]
        wanted = (len(rows[0]),) if rows else (2, 3)
        if len(columns) not in wanted or not all(columns):
            raise DataError(
                f"{path}, line {number}: expected source TAB target{' TAB document' if wanted != (2,) else ''}, all of "
                f"them with text in it, got {len(columns)} column(s): {line[:60]!r}"
            )
        rows.append(columns)
    if not rows:
        raise DataError(f"{path} is empty: give lines of source TAB target")
    return rows


def _without_leaks(pairs: dict[Split, list[Pair]]) -> dict[Split, list[Pair]]:
    """Without training pairs that have a held-out pair's source or target."""
    held = [pair for split in SPLITS[1:] for pair in pairs[split]]
    sources, targets = {pair.source for pair in held}, {pair.target for pair in held}
    kept = [pair for pair in pairs["train"] if pair.source not in sources and pair.target not in targets]
    if not kept:
        raise DataError("every training pair is also held out: the file repeats itself; give other lines")
    return {**pairs, "train": kept}
