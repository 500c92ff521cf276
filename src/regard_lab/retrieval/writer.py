"""Entries on their way to disk, block by block."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.errors import CheckpointError, InputError, NumericsError, ShapeError
from regard.files.checksums import Entry
from regard.files.folders import save_file
from regard_lab.retrieval.manifest import KEY_BYTES, Block, Manifest, Stored
from regard_lab.retrieval.search import Piece

BLOCK_BYTES = 1 << 25
"""of the keys of a block"""


def written(folder: Path, number: int, keys: np.ndarray, values: np.ndarray) -> Block:
    """A block, on disk; nothing names it yet.

    Raises:
        ResourceError: it cannot be written.
    """
    name = f"{number:08d}"
    files = {"keys": keys.astype("<f2", copy=False).tobytes(), "values": values.astype("<i4", copy=False).tobytes()}
    for kind, data in files.items():
        save_file(folder / f"{name}.{kind}", data)
    return Block(name, len(keys), Entry.of(files["keys"]), Entry.of(files["values"]))


class Writer:
    """Adds documents in order: `begin` each, then `append` its entries in any number of pieces.

    Args:
        folder: of the datastore.
        manifest: as it is on disk. With an unfinished addition, the documents that are given must be those that were
            given then, and of what is stored nothing is written again.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        if manifest.adding is None:
            manifest = replace(manifest, adding=len(manifest.documents))
        self.folder, self.manifest = folder, manifest
        assert manifest.adding is not None
        self._at = manifest.adding - 1
        self._documents = list(manifest.documents)
        self._missing = 0
        self._keys: list[np.ndarray] = []
        self._values: list[np.ndarray] = []
        self._waiting = 0
        self._rows = max(1, BLOCK_BYTES // (manifest.dim * KEY_BYTES))

    @property
    def entries(self) -> int:
        """That were taken so far, those that wait for a block included."""
        return self.manifest.entries + self._waiting

    def begin(self, name: str, *, entries: int, digest: str = "") -> int:
        """Begin a document of so many entries; how many of them are stored already and must not be given again.

        Raises:
            ShapeError: the document before has fewer entries than it began with.
            CheckpointError: the addition that is gone on with had another document here.
        """
        self._require_whole()
        self._at += 1
        stored = 0
        if self._at < len(self._documents):
            known = self._documents[self._at]
            longer = known.entries < entries and self._at + 1 < len(self._documents)
            if (known.name, known.digest) != (name, digest) or known.entries > entries or longer:
                raise CheckpointError(
                    f"{self.folder}: the addition that was interrupted had other documents: {known.name!r} with "
                    f"{known.entries} entries stored, now {name!r} with {entries}; give the same ones, or a new folder"
                )
            stored = known.entries
        else:
            self._documents.append(Stored(name, digest, 0))
        self._missing = entries - stored
        return stored

    def append(self, keys: Float[Tensor, "entries dim"], values: Int[Tensor, "entries"]) -> None:
        """Entries of the document that began last.

        Raises:
            ShapeError: another width or number than was said. InputError: values outside the vocabulary.
            NumericsError: keys that are not finite in float16. ResourceError: a block cannot be written.
        """
        dim, vocab_size = self.manifest.dim, self.manifest.vocab_size
        if keys.ndim != 2 or keys.shape[1] != dim or values.shape != keys.shape[:1]:
            raise ShapeError(f"keys must be (entries, {dim}) with a value each, got {tuple(keys.shape)}")
        if len(keys) > self._missing:
            raise ShapeError(f"{self._documents[-1].name!r} has {len(keys) - self._missing} entries more than was said")
        if ((values < 0) | (values >= vocab_size)).any():
            raise InputError(f"values must be from 0 to {vocab_size - 1}")
        half = keys.detach().to("cpu", torch.float16)
        if not half.isfinite().all():
            raise NumericsError(f"{self._documents[-1].name!r} has keys that float16 does not hold: they diverged")
        self._missing -= len(keys)
        self._take(half.numpy(), values.cpu().numpy().astype(np.int32))

    def copy(self, documents: Sequence[Stored], pieces: Iterable[Piece]) -> None:
        """Documents of another datastore, whose entries come piece by piece."""
        waiting, keys, values = iter(pieces), np.empty(0), np.empty(0)
        for document in documents:
            stored = self.begin(document.name, entries=document.entries, digest=document.digest)
            place = 0
            while place < document.entries:
                if not len(keys):
                    _, keys, values = next(waiting)
                count = min(len(keys), document.entries - place)
                if count > (skipped := max(0, stored - place)):
                    self._missing -= count - skipped
                    self._take(keys[skipped:count], values[skipped:count])
                keys, values, place = keys[count:], values[count:], place + count

    def finish(self) -> None:
        """Write what waits, and say that the addition is over.

        Raises:
            ShapeError: the last document has fewer entries than it began with. ResourceError: it cannot be written.
            CheckpointError: the addition that is gone on with had more documents.
        """
        self._require_whole()
        if self._at + 1 < len(self._documents):
            raise CheckpointError(
                f"{self.folder}: the addition that was interrupted had more documents; give the same ones"
            )
        while self._waiting:
            self._write(min(self._rows, self._waiting))
        self.manifest = replace(self.manifest, documents=tuple(self._documents), adding=None)
        self.manifest.write(self.folder)

    def _take(self, keys: np.ndarray, values: np.ndarray) -> None:
        last = self._documents[-1]
        self._documents[-1] = last._replace(entries=last.entries + len(keys))
        self._keys.append(keys)
        self._values.append(values)
        self._waiting += len(keys)
        while self._waiting >= self._rows:
            self._write(self._rows)

    def _write(self, rows: int) -> None:
        """A block of the entries that came first, and a manifest that names it."""
        keys, values = np.concatenate(self._keys), np.concatenate(self._values)
        self._keys, self._values = [keys[rows:].copy()], [values[rows:].copy()]  # and the pieces are let go
        block = written(self.folder, self.manifest.following, keys[:rows], values[:rows])
        self._waiting -= rows
        self.manifest = replace(
            self.manifest,
            documents=_first(self._documents, self.manifest.entries + rows),
            blocks=(*self.manifest.blocks, block),
            following=self.manifest.following + 1,
        )
        self.manifest.write(self.folder)

    def _require_whole(self) -> None:
        if self._missing:
            raise ShapeError(f"{self._documents[-1].name!r} lacks {self._missing} of the entries that it began with")


def _first(documents: Sequence[Stored], entries: int) -> tuple[Stored, ...]:
    """The documents of so many entries, the last one as far as it goes."""
    found = []
    for document in documents:
        if entries <= 0:
            break
        found.append(document._replace(entries=min(entries, document.entries)))
        entries -= document.entries
    return tuple(found)
