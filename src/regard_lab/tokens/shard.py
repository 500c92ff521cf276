"""A shard on its way to disk."""

import hashlib
import json
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from regard.files.checksums import Entry, opened, sealed
from regard.files.reading import content
from regard.files.writing import new_file, save_file, writing
from regard.text.reader import Reader
from regard.text.tokenizer import Tokenizer
from regard_lab.tasks.base import SPLITS, Split
from regard_lab.tasks.token_store import BLOCK_BYTES, BOUNDS, IDS, KINDS, RECORD, SUM, SUMS, Amount, Shard, token_kind
from regard_lab.tokens.texts import split_of


class Written:
    """A file that is written from its beginning to its end, and named when `stack` closes and it is on disk."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self._file = path, stack.enter_context(new_file(path))
        self._digest, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Add to it."""
        with writing(self.path):
            self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def entry(self) -> Entry:
        """What is in it."""
        return Entry(self._digest.hexdigest(), self.size)


class Tokens(Written):
    """The ids of a shard, with the checksums of their blocks."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        super().__init__(path, stack)
        self.sums: list[int] = []
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += data
        whole = len(self._waiting) // BLOCK_BYTES * BLOCK_BYTES
        if whole:
            self._block(bytes(self._waiting[:whole]))
            del self._waiting[:whole]

    def rest(self) -> None:
        """Write what is left of the last block."""
        if self._waiting:
            self._block(bytes(self._waiting))
            self._waiting.clear()

    def _block(self, data: bytes) -> None:
        self.sums += [zlib.crc32(data[first : first + BLOCK_BYTES]) for first in range(0, len(data), BLOCK_BYTES)]
        super().write(data)


def write_shard(folder: Path, name: str, texts: Iterable[str], tokenizer: Reader, holdout: float, source: str) -> Shard:
    """Write a shard, and then what says that it is finished. Memory: a document, and 4 bytes for every 64 KiB.

    Args:
        folder: of the store.
        name: of the shard.
        texts: its documents.
        tokenizer: that makes tokens of them.
        holdout: as `split_of`.
        source: what the shard is made of, so that a finished one is known to be that one.

    Raises:
        ResourceError: it cannot be written. Others: as the documents and the tokenizer.
    """
    measured = not isinstance(tokenizer, Tokenizer)
    kind = token_kind(tokenizer.vocab_size, measured=measured)
    amounts: dict[Split, Amount] = {split: Amount() for split in SPLITS}
    with ExitStack() as stack:
        ids = Tokens(folder / f"{name}.{IDS}", stack)
        bounds = {split: Written(folder / f"{name}.{split}", stack) for split in SPLITS}
        at = 0
        for text in texts:
            split, begin, nbytes = split_of(text, holdout), at, 0
            for encoded in tokenizer.in_pieces([text]):
                tokens = np.empty(encoded.ids.size, kind)
                if measured:
                    tokens["id"], tokens["nbytes"] = encoded.ids, encoded.nbytes
                else:
                    tokens[:] = encoded.ids
                ids.write(tokens.tobytes())
                nbytes += int(encoded.nbytes[at == begin :].sum())  # the first token is not predicted
                at += len(tokens)
            if at > begin:
                bounds[split].write(np.array([begin, at], BOUNDS).tobytes())
                amounts[split] = amounts[split].plus(Amount(1, at - begin, nbytes))
        ids.rest()
        sums = Written(folder / f"{name}.{SUMS}", stack)
        sums.write(np.array(ids.sums, SUM).tobytes())
        entries = {IDS: ids.entry, SUMS: sums.entry, **{split: each.entry for split, each in bounds.items()}}
    shard = Shard(name, entries, amounts)
    save_file(folder / f"{name}.{RECORD}", json.dumps(sealed({**shard.document(), "source": source})).encode())
    return shard


def finished(folder: Path, name: str, source: str) -> Shard | None:
    """A shard that an earlier process finished; None: there is none, of another source, or it is damaged.

    Everything in it is compared with its SHA-256.
    """
    try:
        record: dict[str, Any] = opened(content(folder / f"{name}.{RECORD}"))
        if record["source"] != source:
            return None
        shard = Shard.of(record)
        for kind in KINDS:
            shard.files[kind].require(Entry.at(folder / f"{name}.{kind}"), name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return shard if shard.name == name else None
