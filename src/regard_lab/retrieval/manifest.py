"""What a datastore says of itself, in one file that is replaced in one step."""

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from regard.core.errors import CheckpointError, ConfigError, ResourceError
from regard.files.checksums import MANIFEST, Entry, opened, plain_name, sealed
from regard.files.folders import save_file, writing
from regard.files.reading import content
from regard.files.writing import is_partial, locked

FORMAT = 1
IndexKind = Literal["flat", "ivf", "hnsw"]
"""what `Index` makes, in files of these names. flat: every key, in float32; ivf: keys by their nearest of some centres,
of which the nearest are searched (Sivic & Zisserman 2003; Jégou et al. 2011); hnsw: a navigable small world (Malkov &
Yashunin 2018)"""
KEY_BYTES, VALUE_BYTES = 2, 4
"""of one number of a key, float16, and of one value, int32"""
_OF_BLOCK = re.compile(r"[0-9]{8,}\.(keys|values)", re.ASCII)


class Stored(NamedTuple):
    """A document: what it is called, a digest of its token ids, and how many of its entries are there."""

    name: str
    digest: str
    entries: int


class Block(NamedTuple):
    """Consecutive entries, in two files: NAME.keys and NAME.values."""

    name: str
    entries: int
    keys: Entry
    values: Entry

    @property
    def files(self) -> dict[str, Entry]:
        """Name -> what must be in it."""
        return {f"{self.name}.keys": self.keys, f"{self.name}.values": self.values}


class Stats(NamedTuple):
    """entries, and nbytes of them on disk. dim: of a key. origin: what made the keys. documents: name -> entries.
    copies: documents whose tokens are those of one before them, so that its neighbours are found twice.
    """

    entries: int
    nbytes: int
    dim: int
    documents: dict[str, int]
    origin: Mapping[str, str]
    copies: int


@dataclass(frozen=True)
class Manifest:
    """dim: width of a key. vocab_size: values are below. origin: what made the keys, by name (model, tokenizer).
    documents, blocks: in the order of the entries. following: number of the next block, of which none is used twice.
    adding: how many documents there were before an addition that is not finished; None: there is none.
    """

    dim: int
    vocab_size: int
    origin: Mapping[str, str]
    documents: tuple[Stored, ...] = ()
    blocks: tuple[Block, ...] = ()
    following: int = 0
    adding: int | None = None

    @property
    def entries(self) -> int:
        """Of all blocks."""
        return sum(block.entries for block in self.blocks)

    @property
    def before(self) -> "Manifest":
        """Without an addition that is not finished, which began with a block of its own."""
        if self.adding is None:
            return self
        documents = self.documents[: self.adding]
        left, blocks = sum(document.entries for document in documents), []
        for block in self.blocks:
            if left:
                blocks.append(block)
                left -= block.entries
        return replace(self, documents=documents, blocks=tuple(blocks), adding=None)

    def of_file(self, name: str) -> list[str]:
        """Names of the documents into which a file of this name was cut."""
        return [document.name for document in self.documents if document.name.startswith(f"{name}:")]

    def stats(self) -> Stats:
        """What is in the datastore."""
        documents: Counter[str] = Counter()
        for document in self.documents:
            documents[document.name] += document.entries
        nbytes = sum(entry.size for block in self.blocks for entry in block.files.values())
        found = [document.digest for document in self.documents if document.digest and document.entries]
        return Stats(self.entries, nbytes, self.dim, dict(documents), self.origin, len(found) - len(set(found)))

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder in one step.

        Raises:
            ResourceError: it cannot be written; the earlier one is still there.
        """
        document = sealed({"format": FORMAT, **asdict(replace(self, origin=dict(self.origin)))})
        save_file(folder / MANIFEST, (json.dumps(document, ensure_ascii=False) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """That of a folder.

        Raises:
            ConfigError: the folder is no datastore, or a run. CheckpointError: the manifest is damaged.
            ResourceError: it cannot be read.
        """
        path = folder / MANIFEST
        if not folder.exists():
            raise ConfigError(f"there is no {folder}: make a datastore with regard knn build, or say where one is")
        if not path.exists():
            raise ConfigError(f"{folder} is no datastore: it has no {MANIFEST}. Make one with regard knn build")
        try:
            document = opened(content(path))
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}; nothing was changed") from error
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}; build the datastore again") from None
        if "format" not in document:
            raise ConfigError(f"{folder} is no datastore, but something else with a {MANIFEST}; use regard knn build")
        try:
            return cls._of(document)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise CheckpointError(
                f"{path} describes no datastore of this version ({type(error).__name__}: {error}); build it again"
            ) from None

    @classmethod
    def _of(cls, document: Mapping) -> "Manifest":
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, and this version reads {FORMAT}")
        return cls(
            document["dim"],
            document["vocab_size"],
            document["origin"],
            tuple(Stored(*one) for one in document["documents"]),
            tuple(
                Block(plain_name(name), count, Entry(*keys), Entry(*values))
                for name, count, keys, values in document["blocks"]
            ),
            document["following"],
            document["adding"],
        )


def readable(folder: Path, *, unfinished: bool) -> Manifest:
    """The manifest of a datastore; of one that a living process adds to, as it was before that.

    Raises:
        CheckpointError: a build or an addition was interrupted, and not `unfinished`.
        ResourceError: a living process builds it, or adds to what is `unfinished`. Others: as `Manifest.read`.
    """
    found = Manifest.read(folder)
    if found.adding is None:
        return found
    what = "an addition" if found.adding else "its build"
    try:
        with locked(folder.resolve(), fcntl.LOCK_SH):
            found = Manifest.read(folder)
    except BlockingIOError:
        if found.adding and not unfinished:
            return found.before
        raise ResourceError(f"{folder} is not whole: another process is writing it ({what}); wait for it") from None
    if found.adding is not None and not unfinished:
        raise CheckpointError(
            f"{folder} is not whole: {what} was interrupted after {found.entries:,} entries; "
            "give the same regard knn build or regard knn merge again, which goes on from there"
        )
    return found


def unused(folder: Path) -> bool:
    """Whether there is no such folder, or nothing in it but files that a process began before it was killed."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    return all(map(is_partial, folder.iterdir()))


def require_same(one: Path, ours: Manifest, other: Path, theirs: Manifest) -> None:
    """Refuse to join what two folders have.

    Raises:
        CheckpointError: they are of other models, tokenizers, widths or windows.
    """
    mine, yours = dict(ours.origin), dict(theirs.origin)
    if (ours.dim, ours.vocab_size, mine) == (theirs.dim, theirs.vocab_size, yours):
        return
    lengths = mine.pop("length", ""), yours.pop("length", "")
    if mine != yours or lengths[0] == lengths[1]:
        raise CheckpointError(f"{one} and {other} were not made by the same model")
    raise CheckpointError(
        f"{one} was built in windows of {lengths[0]} tokens and {other} of {lengths[1]}: only what has the same "
        "--length is joined"
    )


def remove_indices(folder: Path) -> None:
    """Without the indices of FAISS, which hold every key.

    Raises:
        ResourceError: one cannot be removed.
    """
    for kind in get_args(IndexKind):
        for path in (folder / f"{kind}.faiss", folder / f"{kind}.json"):
            with writing(path):
                path.unlink(missing_ok=True)


def require_datastore(folder: Path) -> None:
    """Refuse to make a datastore where something else is.

    Raises:
        ConfigError: the folder is no datastore.
    """
    if not (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} exists and is no datastore; choose another name: nothing is ever overwritten")


def of_block(path: Path) -> bool:
    """Whether a file is called as those of blocks are."""
    return bool(_OF_BLOCK.fullmatch(path.name)) and path.is_file()
