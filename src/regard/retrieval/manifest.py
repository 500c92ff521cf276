"""What a datastore says of itself, in one file that is replaced in one step."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from regard.checksums import MANIFEST, Entry, opened, sealed
from regard.errors import CheckpointError, ConfigError, ResourceError
from regard.reading import content
from regard.training.files import save_file

FORMAT = 1
KEY_BYTES, VALUE_BYTES = 2, 4
"""of one number of a key, float16, and of one value, int32"""


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
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} describes no datastore of this version ({type(error).__name__}: {error}); build it again"
            ) from None

    @classmethod
    def _of(cls, document: Mapping) -> "Manifest":
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, and this version reads {FORMAT}")
        documents = tuple(Stored(str(name), str(digest), int(count)) for name, digest, count in document["documents"])
        blocks = tuple(
            Block(str(name), int(count), Entry(str(keys[0]), int(keys[1])), Entry(str(values[0]), int(values[1])))
            for name, count, keys, values in document["blocks"]
        )
        found = cls(
            int(document["dim"]),
            int(document["vocab_size"]),
            {str(name): str(value) for name, value in document["origin"].items()},
            documents,
            blocks,
            int(document["following"]),
            None if document["adding"] is None else int(document["adding"]),
        )
        found._require_sound()
        return found

    def _require_sound(self) -> None:
        if self.dim < 1 or any(one.entries < 0 for one in self.documents):
            raise ValueError("sizes below their least")
        if sum(one.entries for one in self.documents) != self.entries:
            raise ValueError("its documents have other entries than its blocks")
        for block in self.blocks:
            sizes = (block.entries * self.dim * KEY_BYTES, block.entries * VALUE_BYTES)
            if not block.name.isalnum() or block.entries < 1 or (block.keys.size, block.values.size) != sizes:
                raise ValueError(f"block {block.name!r} does not fit {block.entries} entries")
