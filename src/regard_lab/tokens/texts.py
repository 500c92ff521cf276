"""The documents of a piece of a corpus, read one after the other."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from regard.core.errors import LimitError
from regard_lab.tasks import corpus
from regard_lab.tasks.base import Split
from regard_lab.tasks.config import TABLES
from regard_lab.tokens.plan import Piece

MOST_BYTES = 1 << 30
"""of a file that is one document, which is read whole"""


def texts(base: Path, piece: Piece, field: str | None, separator: str | None) -> Iterator[str]:
    """The documents of a piece, whose path counts from `base`; other arguments and errors as `corpus.texts`.

    Raises:
        LimitError: a document that is too large to be read whole.
    """
    path = base / piece.path
    if separator is None and piece.size > MOST_BYTES and path.suffix.lower() not in TABLES:
        raise LimitError(
            f"{path} is one document of {piece.size:,} bytes, and at most {MOST_BYTES:,} are read whole; say what "
            "separates its documents: --separator"
        )
    span = None if piece.stop is None else (piece.start, piece.stop)
    yield from map("".join, corpus.texts(path, field, separator, span))


def split_of(text: str, holdout: float) -> Split:
    """The split of a document, by the first 64 bits of the SHA-256 of its text.

    It depends on nothing but the text, so equal documents are in one split, however a corpus is cut, named or added to.
    The test gets the share `holdout` of the hashes, validation the next one.

    Example:
        >>> split_of("four score and seven years ago", 0.05)
        'train'
    """
    place = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") / 2**64
    return "test" if place < holdout else "valid" if place < 2 * holdout else "train"
