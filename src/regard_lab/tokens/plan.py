"""Which part of a corpus is in which shard: decided by names and sizes of files, before anything is read."""

import hashlib
import json
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import DataError
from regard_lab.tasks.config import TABLES, TEXTS
from regard_lab.tasks.folders import read_folder

CUT = ".jsonl"
"""the files that are cut between lines; others are in one shard each, however large they are"""


class Piece(NamedTuple):
    """A file, or the lines of one that begin from byte `start` up to `stop` (None: the whole file).

    path: from the corpus on. size, changed: bytes of the file, and when it was changed, in nanoseconds.
    """

    path: str
    size: int
    changed: int
    start: int = 0
    stop: int | None = None

    @property
    def nbytes(self) -> int:
        """That are read."""
        return self.size if self.stop is None else self.stop - self.start


class Plan(NamedTuple):
    """base: folder that paths count from. units: the pieces of every shard. left_out: what is said of other files."""

    base: Path
    units: tuple[tuple[Piece, ...], ...]
    left_out: str

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(piece.nbytes for unit in self.units for piece in unit)

    @property
    def suffixes(self) -> set[str]:
        """Endings of the files."""
        return {Path(piece.path).suffix.lower() for unit in self.units for piece in unit}

    def digest(self) -> str:
        """SHA-256 of names, sizes and cuts."""
        return digest([[(*piece[:2], *piece[3:]) for piece in unit] for unit in self.units])


def plan(corpus: Path, shard_bytes: int, suffixes: Collection[str] = ()) -> Plan:
    """Files in the order of their paths, as many in a shard as reach `shard_bytes`; rows of larger .jsonl files, cut.

    Args:
        corpus: a folder, with what is below it, or a file.
        shard_bytes: of files in a shard.
        suffixes: endings of files of a folder that are read; none: all that regard reads.

    Raises:
        DataError: there is none, or nothing in it that is read.
    """
    known = (*TEXTS, *TABLES)
    if corpus.is_dir():
        base, folder = corpus, read_folder(corpus, suffixes or known)
        paths, left_out = folder.paths, folder.left_out
    elif corpus.is_file() and corpus.suffix.lower() in known:
        base, paths, left_out = corpus.parent, (corpus,), ""
    else:
        raise DataError(f"{corpus} is no folder and no file that regard reads ({', '.join(known)})")
    if not paths:
        raise DataError(f"the folder {corpus} holds no file that regard reads ({', '.join(known)}){left_out}")
    units: list[tuple[Piece, ...]] = []
    waiting: list[Piece] = []
    nbytes = 0
    for path in paths:
        about = path.stat()
        piece = Piece(str(path.relative_to(base)), about.st_size, about.st_mtime_ns)
        cut = _cut(piece, shard_bytes)
        if not cut:
            waiting.append(piece)
            nbytes += piece.nbytes
        if waiting and (cut or nbytes >= shard_bytes):
            units.append(tuple(waiting))
            waiting, nbytes = [], 0
        units += [(each,) for each in cut]
    return Plan(base, tuple([*units, tuple(waiting)] if waiting else units), left_out)


def digest(value: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _cut(whole: Piece, shard_bytes: int) -> Sequence[Piece]:
    """Parts of equal size, each for a shard of its own; none of a file that is not cut."""
    count = -(-whole.size // shard_bytes)
    if count < 2 or Path(whole.path).suffix.lower() != CUT:
        return ()
    edges = [whole.size * at // count for at in range(count + 1)]
    return [whole._replace(start=one, stop=two) for one, two in pairwise(edges)]
