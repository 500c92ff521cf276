"""Text that documents come from: named corpora, files of text, files with a text in every row, and folders."""

import hashlib
import lzma
import os
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import ConfigError, DataError, nearest
from regard.files.reading import found_in, plain
from regard_lab.tasks.base import SPLITS, Split
from regard_lab.tasks.config import TABLES, TEXTS, TextConfig
from regard_lab.tasks.folders import read_folder
from regard_lab.tasks.tables import rows, text_in
from regard_lab.tasks.text_files import chunks, documents
from regard_lab.tasks.token_store import is_store

BUNDLED = ("song_ci", "state_of_the_union")
LIBRARY = "python_library"
"""source code: the modules of the standard library of the Python that runs, a document each. Another version of Python
has other ones, which the fingerprint says"""
NAMED = (*BUNDLED, LIBRARY)
FIELD = "--task.field"


class Document(NamedTuple):
    """A text and the group that it is split with: documents of one group are never in two splits.

    name: of its file, or else its group, such as a year.
    """

    text: str
    group: str
    name: str


class Streamed(NamedTuple):
    """A document a piece at a time, to be read before the next one. group: None is the SHA-256 of its text."""

    pieces: Iterable[str]
    group: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read again and again.

    name: as the user called it. paths: the files, hashed for the cache. stream: reads the documents, in pieces.
    continuous: one text in three consecutive groups named after the splits, because it has no documents of its own.
    left_out: of a folder, how many files are not read and why, for messages.
    """

    name: str
    paths: tuple[Path, ...]
    stream: Callable[[], Iterator[Streamed]]
    continuous: bool = False
    left_out: str = ""

    def fingerprint(self) -> str:
        """SHA-256 of the names and contents of the files."""
        digest = hashlib.sha256()
        for path in self.paths:
            try:
                with plain(path) as file:
                    digested = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}") from error
            digest.update(os.fsencode(path.name) + f" {digested}\n".encode())
        return digest.hexdigest()

    def parse(self) -> Iterator[Document]:
        """Read the documents, each as a whole."""
        for pieces, group, name in self.stream():
            text = "".join(pieces)
            group = group or _digest([text])
            yield Document(text, group, name or group)

    def documents(self) -> list[Document]:
        """The documents of a corpus that is not split: a continuous text is one."""
        documents = list(self.parse())
        if not self.continuous:
            return documents
        text = "".join(one.text for one in documents)
        return [Document(text, _digest([text]), documents[0].name.rpartition(":")[0])]

    @cached_property
    def groups(self) -> list[str]:
        """The group of every document, in order."""
        return [group or _digest(pieces) for pieces, group, _ in self.stream()]

    def splits(self, holdout: float) -> dict[str, Split]:
        """The split of every group: the same for the same set of groups, whatever their order.

        Raises:
            DataError: fewer than three groups.
        """
        groups = set(self.groups)
        if self.continuous:
            return {split: split for split in SPLITS}
        split_of = held_out(groups, holdout)
        if split_of is None:
            raise DataError(
                f"{self.name} has {len(groups)} distinct document(s), but train, valid and test need one each: "
                f"add some, say what separates them (--task.separator), or give one file of text, which is cut in three"
            )
        return split_of


def held_out(groups: Collection[str], holdout: float) -> dict[str, Split] | None:
    """The split of every group; None for fewer than three of them.

    Groups are ranked by hash; the first `holdout` of them are the test, the next the validation split.

    Example:
        >>> held_out({"1790", "1791", "1792"}, 0.05)
        {'1790': 'test', '1792': 'valid', '1791': 'train'}
    """
    ranked = sorted(groups, key=lambda group: hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest())
    if len(ranked) < 3:
        return None
    count = min(max(1, round(holdout * len(ranked))), (len(ranked) - 1) // 2)
    split_of: dict[str, Split] = dict.fromkeys(ranked[:count], "test")
    split_of.update(dict.fromkeys(ranked[count : 2 * count], "valid"))
    return {**split_of, **dict.fromkeys(ranked[2 * count :], "train")}


def open_corpus(config: TextConfig) -> Corpus:
    """The corpus that `config.corpus` names. Nothing but the existence of files, and in a folder whether they are
    empty or binary, is checked before they are read.

    Raises:
        DataError: no such corpus, a kind of file that is not read, or a folder without any that is.
        ConfigError: `field`, `separator` or `suffixes` for a corpus that has no use for them.
    """
    name, path = config.corpus, Path(config.corpus).expanduser()
    if not name:
        raise DataError("the corpus has no name; give a bundled corpus, a file of text, or a folder (. is this one)")
    if name in BUNDLED:
        _refuse(config, "field", "separator", "suffixes")
        return Corpus(name, (bundled_path(name),), lambda: _bundled(name))
    if name == LIBRARY:
        _refuse(config, "field", "separator", "suffixes")
        modules = _modules()
        return Corpus(name, modules, lambda: _files(modules, config, modules[0].parent))
    if not path.exists():
        hint = nearest(name, NAMED)
        raise DataError(f"there is no corpus {name!r}: no such file, and no bundled corpus of that name; {hint}")
    if is_store(name):
        raise ConfigError(
            f"{name} is a token store, which training and evaluating a run on text read; this needs text: give the "
            "folder that it was built of"
        )
    if path.is_dir():
        folder = read_folder(path, config.suffixes or (*TEXTS, *TABLES))
        if not folder.paths:
            raise DataError(
                f"the folder {name} holds no file that regard reads ({', '.join((*TEXTS, *TABLES))}){folder.left_out}"
            )
        kinds = {each.suffix.lower() for each in folder.paths}
        _refuse(config, *(() if kinds & {*TABLES} else ("field",)), *(() if kinds & {*TEXTS} else ("separator",)))
        return Corpus(name, folder.paths, lambda: _files(folder.paths, config, path), left_out=folder.left_out)
    kind = path.suffix.lower()
    if kind not in (*TEXTS, *TABLES):
        known = ", ".join((*TEXTS, *TABLES))
        raise DataError(f"{name}: regard reads {known} and folders of such files, not {kind or 'this file'}")
    _refuse(config, "suffixes", "separator" if kind in TABLES else "field")
    if kind in TABLES or config.separator is not None:
        return Corpus(name, (path,), lambda: _files((path,), config, path.parent))
    cuts = cache(lambda: _cuts(path, config.holdout))
    return Corpus(name, (path,), lambda: _continuous(path, cuts()), continuous=True)


def _refuse(config: TextConfig, *options: str) -> None:
    """Options that the corpus has no use for are refused: ignored, they would look like they worked."""
    where = {
        "field": f"{', '.join(TABLES)} files",
        "separator": f"{', '.join(TEXTS)} files",
        "suffixes": "a folder",
    }
    for option in options:
        value = getattr(config, option)
        if value not in (None, ()):
            raise ConfigError(
                f"task text: {option}={value!r} is for {where[option]}, not for {config.corpus}; leave it out"
            )


def _modules() -> tuple[Path, ...]:
    """The modules at the top of the standard library.

    Raises:
        DataError: this Python has none as files.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    modules = tuple(path for path in found_in(folder, ".py") if path.stat().st_size)
    if not modules:
        raise DataError(f"{LIBRARY}: this Python has no modules as files in {folder}; give a file or a folder")
    return modules


def bundled_path(name: str) -> Path:
    """The file of a bundled corpus."""
    return Path(__file__).with_name("corpora") / f"{name}.tsv.xz"


def bundled_rows(name: str) -> Iterator[list[str]]:
    """The lines of a bundled corpus, cut into columns."""
    with lzma.open(bundled_path(name), "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def _bundled(name: str) -> Iterator[Streamed]:
    for first, second, text in bundled_rows(name):
        if name == "state_of_the_union":
            yield Streamed([text], first)  # by year: 1953 and 1961 have two addresses each
        else:
            poem = f"{first}\n{second}\n{text}"
            yield Streamed([poem], _digest([text]), f"{first} {second}")  # some poems go under two authors


def _files(paths: Sequence[Path], config: TextConfig, base: Path) -> Iterator[Streamed]:
    for path in paths:
        name, several = _name(path.relative_to(base)), config.separator is not None or path.suffix.lower() in TABLES
        for number, pieces in enumerate(texts(path, config.field, config.separator), 1):
            yield Streamed(pieces, None, f"{name}:{number}" if several else name)


def _name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def texts(
    path: Path, field: str | None, separator: str | None, span: tuple[int, int] | None = None
) -> Iterator[Iterable[str]]:
    """The texts of a file, each in pieces. Arguments and errors as `rows` and `documents`; a field of None is text."""
    if path.suffix.lower() not in TABLES:
        return documents(path, separator)
    column = field or "text"
    return ([text_in(row, column, FIELD)] for row in rows(path, {column: FIELD}, span=span))


def _continuous(path: Path, cuts: Sequence[int]) -> Iterator[Streamed]:
    for split, start, stop in zip(SPLITS, cuts[:-1], cuts[1:], strict=True):
        yield Streamed(_between(path, start, stop), split, f"{_name(Path(path.name))}:{split}")


def _between(path: Path, start: int, stop: int) -> Iterator[str]:
    at = 0
    for text in chunks(path):
        yield text[max(start - at, 0) : max(stop - at, 0)]
        at += len(text)


def _cuts(path: Path, holdout: float) -> list[int]:
    """Where three consecutive parts of a text begin and end, in characters: after a line where there is one, since
    neighbours leak least this way."""
    total = sum(map(len, chunks(path)))
    ends, reach = [int(share * total) for share in (1 - 2 * holdout, 1 - holdout)], int(holdout * total / 4)
    cuts, at = {end: end for end in ends}, 0
    for text in chunks(path):
        for end in ends:
            line = text.rfind("\n", max(end - reach - at, 0), max(end - at, 0)) if reach <= end else -1
            cuts[end] = at + line + 1 if line >= 0 else cuts[end]
        at += len(text)
    return [0, *(cuts[end] for end in ends), total]


def _digest(pieces: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.encode("utf-8"))
    return digest.hexdigest()
