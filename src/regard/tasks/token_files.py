"""Token files: the ids of a corpus on disk, mapped into memory, written once and shared by every run."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from regard import checksums
from regard.errors import DataError, ResourceError
from regard.tasks.base import SPLITS, Split
from regard.tasks.tokenizer import Tokenizer, tokenizer_from_json

_FILES = ("meta.json", "tokenizer.json", *(f"{split}.{part}" for split in SPLITS for part in ("ids", "starts.npy")))


class Tokens(NamedTuple):
    """The documents of one split, one after the other.

    ids: read-only memory map of the token ids, each document between two separators. starts: where documents start,
    and the end of the last.
    """

    ids: Integer[np.ndarray, "tokens"]
    starts: Integer[np.ndarray, "documents+1"]


class TokenFiles(NamedTuple):
    """A tokenizer and the tokens of every split."""

    tokenizer: Tokenizer
    splits: dict[Split, Tokens]


Source = Callable[[], tuple[Tokenizer, Iterable[tuple[Split, str]]]]
"""Reads the corpus: the tokenizer, and every document with its split. Called only if the files are not there yet."""


def cache_folder(folder: str | None) -> Path:
    """Where token files live: the folder asked for, else regard/ in $XDG_CACHE_HOME, else in ~/.cache.

    Raises:
        ResourceError: none was asked for, and the user has no home.
    """
    if folder is not None:
        return Path(folder).expanduser()
    # The XDG specification says that relative paths are invalid and must be ignored.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "regard"
    except RuntimeError as error:
        raise ResourceError("there is no home folder to keep token files in; choose a folder: --task.cache") from error


def token_files(folder: Path, key: str, source: Source) -> TokenFiles:
    """The token files for `key`, written first if they are not there. Every byte of them is verified.

    They are written in a temporary folder that is renamed when it is complete, so that a reader sees all or nothing,
    and of two writers one wins while both go on with the same content.

    Args:
        folder: of all token files.
        key: names the content: a hash of the corpus, its splits and the tokenizer.
        source: reads the corpus.

    Raises:
        ResourceError: the folder cannot be written.
        DataError: the files are there but damaged; or the corpus is.
    """
    path = folder / key
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=folder, prefix=".partial-"))
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            _write(partial, key, source)
            _publish(partial, path)
        except OSError as error:
            raise _unwritable(folder, error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return _read(path)


def _write(folder: Path, key: str, source: Source) -> None:
    tokenizer, documents = source()
    dtype = np.dtype(
        np.uint8 if tokenizer.vocab_size <= 1 << 8 else np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    )
    starts: dict[Split, list[int]] = {split: [0] for split in SPLITS}
    files = {split: (folder / f"{split}.ids").open("wb") for split in SPLITS}
    try:
        for split, text in documents:
            ids = tokenizer.encode(text).astype(dtype)
            edge = np.array([tokenizer.separator], dtype)
            files[split].write(np.concatenate([edge, ids, edge]).tobytes())
            starts[split].append(starts[split][-1] + ids.size + 2)
    finally:
        for file in files.values():
            file.close()
    for split in SPLITS:
        np.save(folder / f"{split}.starts.npy", np.array(starts[split], np.int64))
    tokenizer.save(folder / "tokenizer.json")
    (folder / "meta.json").write_text(json.dumps({"dtype": dtype.name, "key": key}), encoding="utf-8")
    checksums.write_manifest(folder, _FILES)


def _publish(partial: Path, path: Path) -> None:
    try:
        partial.rename(path)
    except OSError as error:
        # Another process was faster: its content is the same, the key says so.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not path.exists():
            raise


def _read(path: Path) -> TokenFiles:
    try:
        checksums.verify(path, _FILES)
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        # Those of a version that wrote no key are read as they are.
        if meta.get("key", path.name) != path.name:
            raise ValueError(f"they belong to {meta['key']}")
        dtype = np.dtype(meta["dtype"])
        tokenizer = tokenizer_from_json((path / "tokenizer.json").read_text(encoding="utf-8"))
        splits: dict[Split, Tokens] = {}
        for split in SPLITS:
            starts = np.load(path / f"{split}.starts.npy", allow_pickle=False)
            ids = np.memmap(path / f"{split}.ids", dtype, mode="r")
            if ids.size != starts[-1]:
                raise ValueError(f"{split}.ids has {ids.size} tokens instead of {starts[-1]}")
            splits[split] = Tokens(ids, starts)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, DataError) as error:
        raise DataError(
            f"the token files in {path} are damaged ({error}): delete that folder, it is written anew"
        ) from error
    return TokenFiles(tokenizer, splits)


def _unwritable(folder: Path, error: OSError) -> ResourceError:
    return ResourceError(f"cannot write token files to {folder}: {error.strerror}; choose another folder: --task.cache")
