"""Text that documents come from: named corpora, a .txt or .jsonl file, or a folder of .txt files."""

import hashlib
import json
import lzma
import os
import sysconfig
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.errors import ConfigError, DataError, nearest
from regard.reading import content, plain
from regard.tasks.base import SPLITS, Split
from regard.tasks.config import TextConfig

BUNDLED = ("song_ci", "state_of_the_union")
LIBRARY = "python_library"
"""source code: the modules of the standard library of the Python that runs, a document each. Another version of Python
has other ones, which the fingerprint says"""
NAMED = (*BUNDLED, LIBRARY)


class Document(NamedTuple):
    """A text and the group that it is split with: documents of one group are never in two splits."""

    text: str
    group: str


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read again and again.

    name: as the user called it. paths: the files, hashed for the cache. parse: reads the documents.
    continuous: one text in three consecutive groups named after the splits, because it has no documents of its own.
    """

    name: str
    paths: tuple[Path, ...]
    parse: Callable[[], Iterator[Document]]
    continuous: bool = False

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

    def splits(self, holdout: float) -> dict[str, Split]:
        """The split of every group: the same for the same set of groups, whatever their order.

        Raises:
            DataError: fewer than three groups.
        """
        groups = {document.group for document in self.parse()}
        if self.continuous:
            return {split: split for split in SPLITS}
        split_of = held_out(groups, holdout)
        if split_of is None:
            raise DataError(
                f"{self.name} has {len(groups)} distinct document(s), but train, valid and test need one each: "
                f"add some, say what separates them (--task.separator), or give one .txt file, which is cut in three"
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
    """The corpus that `config.corpus` names. Nothing but the existence of files is checked before they are read.

    Raises:
        DataError: no such corpus, or a kind of file that is not read.
        ConfigError: `field` or `separator` for a corpus that has none.
    """
    name, path = config.corpus, Path(config.corpus).expanduser()
    if name in BUNDLED:
        _refuse(config, field=config.field, separator=config.separator)
        return Corpus(name, (bundled_path(name),), lambda: _bundled(name))
    if name == LIBRARY:
        _refuse(config, field=config.field, separator=config.separator)
        modules = _modules()
        return Corpus(name, modules, lambda: _text_files(modules, None))
    if path.is_dir():
        _refuse(config, field=config.field)
        paths = tuple(sorted(path.glob("**/*.txt")))
        if not paths:
            raise DataError(
                f"the folder {name} holds no .txt file; regard reads folders of .txt, .txt and .jsonl files"
            )
        return Corpus(name, paths, lambda: _text_files(paths, config.separator))
    if not path.exists():
        hint = nearest(name, NAMED)
        raise DataError(f"there is no corpus {name!r}: no such file, and no bundled corpus of that name; {hint}")
    if path.suffix == ".jsonl":
        _refuse(config, separator=config.separator)
        return Corpus(name, (path,), lambda: _json_lines(path, config.field or "text"))
    if path.suffix != ".txt":
        raise DataError(
            f"{name}: regard reads .txt, .jsonl and folders of .txt files, not {path.suffix or 'this file'}"
        )
    _refuse(config, field=config.field)
    if config.separator is not None:
        return Corpus(name, (path,), lambda: _text_files((path,), config.separator))
    return Corpus(name, (path,), lambda: _continuous(path, config.holdout), continuous=True)


def _refuse(config: TextConfig, **options: str | None) -> None:
    """Options that the corpus has no use for are refused: ignored, they would look like they worked."""
    where = {"field": "a .jsonl file", "separator": "a .txt file or a folder of them"}
    for option, value in options.items():
        if value is not None:
            raise ConfigError(
                f"task text: {option}={value!r} is for {where[option]}, not for {config.corpus}; leave it out"
            )


def _modules() -> tuple[Path, ...]:
    """The modules at the top of the standard library.

    Raises:
        DataError: this Python has none as files.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    modules = tuple(path for path in sorted(folder.glob("*.py")) if path.stat().st_size)
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


def _bundled(name: str) -> Iterator[Document]:
    for first, second, text in bundled_rows(name):
        if name == "state_of_the_union":
            yield Document(text, first)  # by year: 1953 and 1961 have two addresses each
        else:
            yield Document(f"{first}\n{second}\n{text}", _digest(text))  # some poems go under two authors


def _text_files(paths: Sequence[Path], separator: str | None) -> Iterator[Document]:
    for path in paths:
        text = read_text(path)
        for document in [text] if separator is None else text.split(separator):
            if document:
                yield Document(document, _digest(document))


def _continuous(path: Path, holdout: float) -> Iterator[Document]:
    """One text in three consecutive parts, cut after a line where there is one: neighbours leak least this way."""
    text = read_text(path)
    cuts = [0]
    for share in (1 - 2 * holdout, 1 - holdout):
        at = int(share * len(text))
        line = text.rfind("\n", at - int(holdout * len(text) / 4), at)
        cuts.append(line + 1 if line >= 0 else at)
    cuts.append(len(text))
    for split, start, stop in zip(SPLITS, cuts[:-1], cuts[1:], strict=True):
        yield Document(text[start:stop], split)


def _json_lines(path: Path, field: str) -> Iterator[Document]:
    has_documents = False
    try:
        file = plain(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, raw in enumerate(file, 1):
            line = _decode(raw, f"{path}, line {number}").strip()
            if not line:
                continue
            text = _field(line, field, f"{path}, line {number}")
            has_documents = True
            yield Document(text, _digest(text))
    if not has_documents:
        raise DataError(f"{path} is empty: give a file with one JSON object a line")


def _field(line: str, field: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{where}: no JSON: {why}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object such as {{{field!r}: ...}}, got {type(row).__name__}")
    if field not in row:
        keys = ", ".join(map(repr, row)) or "none"
        raise DataError(f"{where}: no field {field!r}; fields: {keys}; choose one with --task.field")
    text = row[field]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: field {field!r} holds {type(text).__name__}, not text; choose another with --task.field"
        )
    if "\0" in text:
        raise DataError(f"{where}: field {field!r} holds U+0000, which is no text: remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: field {field!r} holds half a surrogate pair, which is no text: remove it") from error
    return text


def read_text(path: Path) -> str:
    """A file of UTF-8 text.

    Raises:
        DataError: it is missing, empty, binary or in another encoding.
    """
    try:
        raw = content(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not raw:
        raise DataError(f"{path} is empty: give a file with text in it")
    return _decode(raw, str(path))


def _decode(raw: bytes, where: str) -> str:
    """UTF-8 text, without a byte order mark. Never a guess at another encoding: wrong guesses train on rubbish."""
    if b"\0" in raw:
        raise DataError(f"{where}: binary, with a zero byte{_place(raw, raw.index(0))}; regard reads UTF-8 text")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: no UTF-8: byte 0x{raw[error.start]:02x}{_place(raw, error.start)} ({error.reason}); convert the "
            f"file first, for example with iconv -f ENCODING -t UTF-8"
        ) from error


def _place(raw: bytes, at: int) -> str:
    """Where a byte stands, as an editor counts: lines and their bytes from 1."""
    before = raw[:at]
    line = f" of line {before.count(10) + 1}" if b"\n" in raw.removesuffix(b"\n") else ""
    return f" at byte {at - before.rfind(10)}{line}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
