"""Token stores: a corpus of any size as token ids in shards, mapped into memory and checked where it is read."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from regard.core.errors import ConfigError, DataError, listed
from regard.files.checksums import Entry, opened, plain_name, sealed
from regard.files.reading import content, plain
from regard.text.reader import Reader
from regard.text.tokenizer import Tokenizer, tokenizer_from_json
from regard_lab.tasks.base import SPLITS, Split

FORMAT = 1
STORE, BUILD, TOKENIZER = "token_store.json", "token_build.json", "tokenizer.json"
"""what a store says of itself; what an unfinished build does; and what made the tokens"""
BLOCK_BYTES = 1 << 16
"""of the ids of a shard, that have a checksum of their own"""
IDS, SUMS = "ids", "sums"
KINDS = (IDS, SUMS, *SPLITS)
"""endings of the files of a shard"""
RECORD = "json"
"""ending of what says that a shard is finished, until the store is"""
BOUNDS = np.dtype("<i8")
"""of a document: its first token in the shard, and the one behind its last"""
SUM = np.dtype("<u4")
_MAPPED = 192
"""files that are mapped at a time; each holds a descriptor"""


class Amount(NamedTuple):
    """Of a split in a shard."""

    documents: int = 0
    tokens: int = 0
    nbytes: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """The sum of both."""
        return Amount(*(one + two for one, two in zip(self, other, strict=True)))


class Shard(NamedTuple):
    """The documents of a part of a corpus.

    files: ending -> what must be in it: `ids`, all tokens; `sums`, a CRC-32 of every block of them; and for each split
    where its documents are. amounts: of each split.
    """

    name: str
    files: Mapping[str, Entry]
    amounts: Mapping[Split, Amount]

    def document(self) -> dict[str, Any]:
        """What `of` reads."""
        return {"name": self.name, "files": dict(self.files), "amounts": dict(self.amounts)}

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> "Shard":
        """As a manifest says.

        Raises:
            ValueError, KeyError, TypeError: it says something that cannot be.
        """
        entries = {kind: Entry(*written["files"][kind]) for kind in KINDS}
        amounts: dict[Split, Amount] = {split: Amount(*written["amounts"][split]) for split in SPLITS}
        return cls(plain_name(written["name"]), entries, amounts)


@dataclass(frozen=True)
class Facts:
    """What a store says of itself.

    tokenizer: of its description, tokenizer.json. vocab_size: ids are below. measured: beside every id stand the bytes
    that it is for, because the tokenizer does not say. holdout: share of validation, and again of the test. shards: in
    order.
    """

    tokenizer: Entry
    vocab_size: int
    measured: bool
    holdout: float
    shards: tuple[Shard, ...]

    @property
    def kind(self) -> np.dtype:
        """Of a token in a file."""
        return token_kind(self.vocab_size, measured=self.measured)

    def document(self) -> dict[str, Any]:
        """What `of` reads, with its checksum."""
        return sealed(
            {
                "kind": "tokens",
                "format": FORMAT,
                "tokenizer": self.tokenizer,
                "vocab_size": self.vocab_size,
                "measured": self.measured,
                "holdout": self.holdout,
                "shards": [shard.document() for shard in self.shards],
            }
        )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Facts":
        """As a manifest says.

        Raises:
            ValueError, KeyError, TypeError: it says something that cannot be.
        """
        if (document["kind"], document["format"]) != ("tokens", FORMAT):
            raise ValueError(f"format {document['format']!r}, and this version reads {FORMAT}")
        shards = tuple(Shard.of(each) for each in document["shards"])
        made = Entry(*document["tokenizer"])
        return cls(made, document["vocab_size"], document["measured"], document["holdout"], shards)


def token_kind(vocab_size: int, *, measured: bool) -> np.dtype:
    """Of a token in a file: the smallest unsigned number that holds it, and its bytes where they are told."""
    ids = "<u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4"
    return np.dtype([("id", ids), ("nbytes", "<u4")]) if measured else np.dtype(ids)


def is_store(corpus: str) -> bool:
    """Whether a corpus is a token store, or the beginning of one."""
    folder = Path(corpus).expanduser()
    return bool(corpus) and any((folder / name).is_file() for name in (STORE, BUILD))


class TokenStore:
    """A corpus as token ids, on disk.

    Files: `token_store.json`, with the SHA-256 of every other file and of itself; `tokenizer.json`; and for each shard
    NAME.ids, the tokens of its documents one after the other, NAME.sums, a CRC-32 of every 64 KiB of them, and for each
    split NAME.SPLIT, pairs of int64 that say where its documents begin and end. Numbers are little-endian and nothing
    stands before them. Ids are mapped, not read, and every block that is read is compared with its checksum first, so
    that memory does not grow with the corpus and opening one does not read it.

    Args:
        folder: of `regard tokens build`.
        facts: as its manifest says.
        tokenizer: that made it.
        digest: of the manifest, so of all contents.
    """

    def __init__(self, folder: Path, facts: Facts, tokenizer: Reader, digest: str) -> None:
        self.folder, self.facts, self.tokenizer, self.digest = folder, facts, tokenizer, digest
        self._mapped = lru_cache(_MAPPED)(self._map)

    @classmethod
    def open(cls, folder: str | Path) -> "TokenStore":
        """One that is there. Sizes of all files are compared, and contents where they are read.

        Raises:
            ConfigError: the folder is no store, or its build is not finished.
            DataError: damaged or missing files, all by name.
        """
        folder = Path(folder).expanduser()
        if not (folder / STORE).is_file():
            if (folder / BUILD).is_file():
                raise ConfigError(
                    f"{folder} is not whole: its build was interrupted. Give the same regard tokens build again, which "
                    "goes on from the shards that are finished"
                )
            raise ConfigError(f"{folder} is no token store: it has no {STORE}. Make one with regard tokens build")
        try:
            written = opened(content(folder / STORE))
            facts = Facts.of(written)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder / STORE} is damaged ({error}); put it back, or build the store again") from error
        problems = _problems(folder, facts, contents=False)
        if problems:
            raise _damaged(folder, problems)
        tokenizer = tokenizer_from_json((folder / TOKENIZER).read_text(encoding="utf-8"))
        if tokenizer.vocab_size != facts.vocab_size or isinstance(tokenizer, Tokenizer) == facts.measured:
            raise _damaged(folder, [f"{TOKENIZER} is another tokenizer than made the tokens"])
        return cls(folder, facts, tokenizer, sealed(written)["sha256"])

    def verify(self) -> None:
        """Read everything, and compare it with the checksums.

        Raises:
            DataError: some files are damaged or missing; all are named.
        """
        problems = _problems(self.folder, self.facts, contents=True)
        if problems:
            raise _damaged(self.folder, problems)

    def amount(self, split: Split) -> Amount:
        """What is in a split."""
        total = Amount()
        for shard in self.facts.shards:
            total = total.plus(shard.amounts[split])
        return total

    @property
    def nbytes(self) -> int:
        """Of all files of the shards."""
        return sum(entry.size for shard in self.facts.shards for entry in shard.files.values())

    def bounds(self, number: int, split: Split) -> Int64[np.ndarray, "documents 2"]:
        """Where the documents of a split begin and end in a shard, mapped.

        Raises:
            DataError: the file is gone.
        """
        return self._mapped(number, split).view(BOUNDS).reshape(-1, 2)

    def require_bounds(self, number: int, split: Split) -> None:
        """Compare the bounds of a shard with their checksum.

        Raises:
            DataError: they are other ones.
        """
        shard = self.facts.shards[number]
        name = f"{shard.name}.{split}"
        try:
            shard.files[split].require(Entry.at(self.folder / name), name)
        except (OSError, ValueError) as error:
            raise _damaged(self.folder, [str(error)]) from error

    def tokens(self, number: int, first: int, stop: int) -> tuple[Int64[np.ndarray, "tokens"], np.ndarray]:
        """Consecutive tokens of a shard, and how many bytes each stands for. Their blocks are checked.

        Raises:
            DataError: they are not what was written.
        """
        size = self.facts.kind.itemsize
        data, sums = self._mapped(number, IDS), self._mapped(number, SUMS).view(SUM)
        for block in range(first * size // BLOCK_BYTES, -(-stop * size // BLOCK_BYTES)):
            begin = block * BLOCK_BYTES
            if zlib.crc32(data[begin : begin + BLOCK_BYTES].data) != sums[block]:
                name = f"{self.facts.shards[number].name}.{IDS}"
                raise _damaged(self.folder, [f"{name} is damaged within {BLOCK_BYTES} bytes behind byte {begin}"])
        found = np.array(data[first * size : stop * size]).view(self.facts.kind)
        if self.facts.measured:
            return found["id"].astype(np.int64), found["nbytes"].astype(np.int64)
        ids = found.astype(np.int64)
        assert isinstance(self.tokenizer, Tokenizer)
        return ids, self.tokenizer.sizes[ids]

    def _map(self, number: int, kind: str) -> np.ndarray:
        """The bytes of a file of a shard; those of an empty one cannot be mapped."""
        path = self.folder / f"{self.facts.shards[number].name}.{kind}"
        if not self.facts.shards[number].files[kind].size:
            return np.empty(0, np.uint8)
        try:
            with plain(path) as file:
                return np.asarray(np.memmap(file, np.uint8, mode="r"))
        except (OSError, ValueError) as error:
            raise _damaged(self.folder, [f"cannot map {path.name}: {error}"]) from error


def _problems(folder: Path, facts: Facts, *, contents: bool) -> list[str]:
    """What is wrong with files: their sizes, the tokenizer, and with `contents` everything in them."""
    files = {f"{shard.name}.{kind}": entry for shard in facts.shards for kind, entry in shard.files.items()}
    found = []
    for name, expected in {TOKENIZER: facts.tokenizer, **files}.items():
        try:
            size = (folder / name).stat().st_size
            whole_file = size == expected.size and (contents or name == TOKENIZER)
            expected.require(Entry.at(folder / name) if whole_file else Entry(expected.sha256, size), name)
        except OSError as error:
            found.append(f"cannot read {name}: {error.strerror}")
        except ValueError as error:
            found.append(str(error))
    return found


def _damaged(folder: Path, problems: list[str]) -> DataError:
    return DataError(f"{folder} is damaged; put the files back, or build it again:{listed(problems)}")
