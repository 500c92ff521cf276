"""Datastores: keys and values on disk, memory-mapped: added to, searched, verified, merged and deleted from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.errors import CheckpointError, ConfigError, RegardError, ResourceError
from regard.files.checksums import Entry
from regard.files.folders import MISSING, load_file, locked_folder, writing
from regard.files.writing import sweep
from regard_lab.retrieval.manifest import (
    Manifest,
    Stats,
    of_block,
    readable,
    remove_indices,
    require_datastore,
    require_same,
    unused,
)
from regard_lab.retrieval.search import Neighbours, Piece, mapped, nearest, require_query
from regard_lab.retrieval.writer import Writer, written


@dataclass(frozen=True)
class Datastore:
    """Entries (k_i, w_i): keys in float16 and the token that followed each, document by document, in a folder.

    Files: `manifest.json`, with the SHA-256 of every other file and of itself, and for each block of about 32 MiB
    NAME.keys (float16) and NAME.values (int32), both little-endian and nothing else. They are mapped, not read: what
    stays in memory depends on the search, not on the entries. A block is written whole and then named by the manifest,
    which is replaced in one step: a crash or a full disk loses the entries that were not yet in a block, and no others.

    A datastore is a value: what is added or deleted is in a new one, of the same folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "store"
        >>> with Datastore.create(folder, 2, vocab_size=10).adding() as writer:
        ...     writer.begin("a", entries=2)
        ...     writer.append(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([7, 8]))
        0
        >>> Datastore.open(folder).search(torch.tensor([[0.0, 0.0]]), 2)._asdict()
        {'distances': tensor([[1., 9.]], dtype=torch.float64), 'ids': tensor([[0, 1]]), 'values': tensor([[7, 8]])}

    Source: Khandelwal et al. 2020, section 2; exact search by blocks in place of its FAISS index.
    """

    folder: Path
    manifest: Manifest

    @classmethod
    def create(
        cls,
        folder: str | Path,
        dim: int,
        *,
        vocab_size: int,
        origin: Mapping[str, str] | None = None,
        unfinished: bool = False,
    ) -> "Datastore":
        """An empty one in a new folder, or in one that has nothing in it yet: a killed process may have left it.

        Args:
            folder: one that is not there.
            dim: width of a key.
            vocab_size: values are below.
            origin: what makes the keys, by name; only datastores of the same origin are merged.
            unfinished: it is not whole before something was added to it.

        Raises:
            ConfigError: the folder holds something, or a size below 1.
            ResourceError: it cannot be written, and nothing is left of it; or somebody else is writing it.
        """
        folder = Path(folder)
        if dim < 1 or vocab_size < 1:
            raise ConfigError(f"dim and vocab_size must be at least 1, got {dim} and {vocab_size}")
        if not unused(folder):
            raise ConfigError(f"{folder} exists; choose another name: nothing is ever overwritten")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            if not unused(folder):
                raise ResourceError(f"cannot write {folder}: another process or thread is writing it")
            manifest = Manifest(dim, vocab_size, dict(origin or {}), adding=0 if unfinished else None)
            try:
                manifest.write(folder)
            except ResourceError:
                with suppress(OSError):
                    folder.rmdir()
                raise
        return cls(folder, manifest)

    @classmethod
    def open(cls, folder: str | Path, *, checked: bool = True, unfinished: bool = False) -> "Datastore":
        """One that is there.

        Args:
            folder: where.
            checked: compare SHA-256, a second for a gigabyte; sizes are compared anyway.
            unfinished: also one whose build or addition was interrupted, to go on with it.

        Raises:
            CheckpointError: damaged or missing files, all by name. Others: as `readable`.
        """
        folder = Path(folder)
        found = cls(folder, readable(folder, unfinished=unfinished))
        found.verify(contents=checked)
        return found

    def __len__(self) -> int:
        return self.manifest.entries

    @property
    def store(self) -> "Datastore":
        """Itself: what is searched, as an `Index` says of its own."""
        return self

    @property
    def dim(self) -> int:
        """Width of a key."""
        return self.manifest.dim

    def verify(self, *, contents: bool = True) -> None:
        """Compare every file with the manifest: its size, and with `contents` its SHA-256.

        Raises:
            CheckpointError: some differ; all are named. ResourceError: one cannot be read.
        """
        problems = []
        for block in self.manifest.blocks:
            for name, expected in block.files.items():
                path = self.folder / name
                try:
                    size = path.stat().st_size
                    found = Entry.at(path) if contents and size == expected.size else Entry(expected.sha256, size)
                    expected.require(found, name)
                except OSError as error:
                    if error.errno not in MISSING:
                        raise ResourceError(f"cannot read {path}: {error.strerror}; nothing was changed") from error
                    problems.append(f"cannot read {name}: {error.strerror}")
                except ValueError as error:
                    problems.append(str(error))
        if problems:
            listed = "".join(f"\n  {problem}" for problem in problems)
            raise CheckpointError(f"{self.folder} is damaged; put the files back, or build it again:{listed}")

    def pieces(self) -> list[Piece]:
        """The entries, mapped block by block; no file stays open.

        Raises:
            CheckpointError: a file is gone, with documents that were deleted since or otherwise.
            ResourceError: it cannot be mapped.
        """
        found, first = [], 0
        for block in self.manifest.blocks:
            try:
                keys = mapped(self.folder / f"{block.name}.keys", "<f2", block.entries * self.dim)
                values = mapped(self.folder / f"{block.name}.values", "<i4", block.entries)
            except OSError as error:
                if error.errno in MISSING:
                    raise CheckpointError(self._gone(block.name, error.strerror)) from None
                raise ResourceError(f"{self.folder}: cannot map block {block.name}: {error.strerror}") from error
            found.append(Piece(first, keys.reshape(-1, self.dim), values))
            first += block.entries
        return found

    def verified(self) -> Iterator[Piece]:
        """The entries block by block, in memory: what is copied gets new checksums, so it has those of the manifest.

        Raises:
            CheckpointError: a file is damaged or gone. ResourceError: one cannot be read.
        """
        first = 0
        for block in self.manifest.blocks:
            keys, values = (load_file(self.folder / name, entry) for name, entry in block.files.items())
            yield Piece(first, np.frombuffer(keys, "<f2").reshape(-1, self.dim), np.frombuffer(values, "<i4"))
            first += block.entries

    def _gone(self, block: str, why: str | None) -> str:
        with suppress(RegardError):
            if Manifest.read(self.folder).before != self.manifest.before:
                return f"{self.folder} is another one since it was opened (documents were deleted); open it again"
        return f"{self.folder}: cannot map block {block}: {why}"

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, *, own: Int[Tensor, "queries copies"] | None = None
    ) -> Neighbours:
        """The k entries with the least |q - k_i|^2, exactly: N dim products for a query.

        Args:
            queries: on any device; the answer is on the CPU.
            k: how many.
            own: entries that a query must not find, such as its own; -1: none.

        Raises:
            CheckpointError: there are no entries. LimitError: k above them. ConfigError: k below 1.
            ShapeError: queries of another width.
        """
        require_query(queries, k, own, dim=self.dim, entries=len(self))
        return nearest(self.pieces(), queries.detach().cpu(), k, None if own is None else own.cpu())

    def stats(self) -> Stats:
        """What is in it."""
        return self.manifest.stats()

    def starts(self) -> list[int]:
        """Number of the first entry of every document."""
        return [0, *np.cumsum([document.entries for document in self.manifest.documents]).tolist()][:-1]

    def values(self, first: int, stop: int) -> Int[Tensor, "entries"]:
        """The values of consecutive entries."""
        parts = [piece.values[max(0, first - piece.first) : max(0, stop - piece.first)] for piece in self.pieces()]
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64))

    @contextmanager
    def adding(self, *, as_opened: bool = False) -> Iterator[Writer]:
        """Add documents, or go on with an addition that was interrupted. Nobody else may write meanwhile.

        An error leaves what is in whole blocks, and the datastore unfinished: the same documents, given again to
        `adding` of one that was opened with `unfinished`, are gone on with.

        Args:
            as_opened: only to what this one was when it was opened, and not to what somebody made of it since.

        Raises:
            ResourceError: it cannot be written, or somebody else is writing it, or has, where that matters.
        """
        with self._alone() as current:
            if as_opened and current.manifest != self.manifest:
                raise ResourceError(f"{self.folder} was written by another process meanwhile; look at what it is now")
            writer = Writer(self.folder, current.manifest)
            yield writer
            writer.finish()

    def delete(self, *names: str) -> "Datastore":
        """Without the documents of these names, or of these files, all in one step. Blocks that hold others too are
        written anew before the old ones go; indices go too.

        Raises:
            ConfigError: one has none. CheckpointError: an addition is unfinished. ResourceError: as `adding`.
        """
        with self._alone() as current:
            manifest = current.manifest
            if manifest.adding is not None:
                raise CheckpointError(f"{self.folder} is still being added to; finish that first")
            names = tuple(each for name in names for each in (manifest.of_file(name) or [name]))
            current._require_documents(names)
            kept = np.repeat(
                [document.name not in names for document in manifest.documents],
                [document.entries for document in manifest.documents],
            )
            blocks, following = [], manifest.following
            for block, piece in zip(manifest.blocks, current.verified(), strict=True):
                keep = kept[piece.first : piece.first + block.entries]
                if keep.all():
                    blocks.append(block)
                elif keep.any():
                    blocks.append(written(self.folder, following, piece.keys[keep], piece.values[keep]))
                    following += 1
            documents = tuple(document for document in manifest.documents if document.name not in names)
            after = replace(manifest, documents=documents, blocks=tuple(blocks), following=following)
            after.write(self.folder)
            result = Datastore(self.folder, after)
            result._sweep()
            remove_indices(self.folder)
            return result

    @classmethod
    def merge(cls, folder: str | Path, stores: Sequence["Datastore"]) -> "Datastore":
        """A new one with the documents of all, in their order. One that was interrupted goes on when it is given again.

        Raises:
            ConfigError: the folder holds something else, or there is none to merge.
            CheckpointError: they are of other models, tokenizers or widths. ResourceError: it cannot be written.
        """
        if not stores:
            raise ConfigError("there is no datastore to merge")
        first = stores[0].manifest
        for store in stores[1:]:
            require_same(store.folder, store.manifest, stores[0].folder, first)
        folder = Path(folder)
        if unused(folder):
            merged = cls.create(folder, first.dim, vocab_size=first.vocab_size, origin=first.origin, unfinished=True)
        else:
            require_datastore(folder)
            merged = cls.open(folder, unfinished=True)
            begun = merged.manifest
            if begun.documents and begun.adding != 0:
                raise ConfigError(f"{folder} exists; choose another name: nothing is ever overwritten")
            if (begun.dim, begun.vocab_size, begun.origin) != (first.dim, first.vocab_size, first.origin):
                raise CheckpointError(f"{folder} holds a build or a merge of another model that was interrupted")
        with merged.adding(as_opened=True) as writer:
            for store in stores:
                writer.copy(store.manifest.documents, store.verified())
        return cls.open(folder, checked=False)

    def _require_documents(self, names: Iterable[str]) -> None:
        """Refuse names that no document has.

        Raises:
            ConfigError: there are some.
        """
        known = {document.name for document in self.manifest.documents}
        unknown = sorted(set(names) - known)
        if unknown:
            meant = sorted(name for name in known if name.startswith(unknown[0])) if unknown[0] else []
            way = f"do you mean {meant[0]}?" if len(meant) == 1 else "regard knn stats --json lists them"
            raise ConfigError(f"{self.folder} has no document {', '.join(map(repr, unknown))}; {way}")

    def own(self, digest: str) -> list[int]:
        """Numbers of the first entries of the documents with this digest: none, one, or one for each copy."""
        return [
            start
            for start, document in zip(self.starts(), self.manifest.documents, strict=True)
            if document.digest == digest
        ]

    def require_origin(self, origin: Mapping[str, str], dim: int) -> None:
        """Refuse to be looked things up in by something else than what made the keys.

        Raises:
            CheckpointError: another width, model or tokenizer.
        """
        if dim != self.dim:
            raise CheckpointError(f"{self.folder} has keys of {self.dim} numbers, and this model makes {dim}")
        for name, value in origin.items():
            made = self.manifest.origin.get(name)
            if made != value and name == "length":
                raise CheckpointError(
                    f"{self.folder} was built in windows of {made} tokens, not {value}: give --length {made}"
                )
            if made != value:
                raise CheckpointError(
                    f"{self.folder} was made with another {name} (SHA-256 {str(made)[:12]}..., not {value[:12]}...); "
                    "build one with this model"
                )

    @contextmanager
    def _alone(self) -> Iterator["Datastore"]:
        """As it is on disk now, while nobody else writes; files that no manifest names are removed."""
        with locked_folder(self.folder):
            current = Datastore(self.folder, Manifest.read(self.folder))
            current._sweep()
            yield current

    def _sweep(self) -> None:
        """Remove blocks that a killed process left or began, or that were written anew; no file of somebody else."""
        sweep(self.folder)
        named = {name for block in self.manifest.blocks for name in block.files}
        for path in list(self.folder.iterdir()):
            if of_block(path) and path.name not in named:
                with writing(path):
                    path.unlink(missing_ok=True)
