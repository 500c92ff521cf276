"""Token files: the ids of a corpus on disk, mapped into memory, written once and shared by every run."""

import json
import os
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer, UInt8

from regard.core.errors import DataError, ResourceError
from regard.files import checksums
from regard.files.writing import partial, sweep
from regard.text.reader import Reader
from regard.text.tokenizer import Tokenizer, tokenizer_from_json
from regard_lab.tasks.base import SPLITS, Split
from regard_lab.tasks.ticking import Ticking

_FILES = ("meta.json", "tokenizer.json", *(f"{split}.{part}" for split in SPLITS for part in ("ids", "starts.npy")))
_MEASURED = tuple(f"{split}.{part}" for split in SPLITS for part in ("nbytes", "text"))
"""files beside these where a token does not always stand for the same bytes"""

_NBYTES = np.dtype(np.uint32)


class Tokens(NamedTuple):
    """The documents of one split, one after the other.

    ids: read-only memory map of the token ids, each document as the tokenizer makes one. starts: where documents start,
    and the end of the last. nbytes, text: the bytes that each token stands for, and all of them one after the other;
    None: the tokenizer says so.
    """

    ids: Integer[np.ndarray, "tokens"]
    starts: Integer[np.ndarray, "documents+1"]
    nbytes: Integer[np.ndarray, "tokens"] | None = None
    text: UInt8[np.ndarray, "bytes"] | None = None


class TokenFiles(NamedTuple):
    """A tokenizer and the tokens of every split."""

    tokenizer: Reader
    splits: dict[Split, Tokens]


Source = Callable[[], tuple[Reader, Iterable[tuple[Split, Iterable[str]]]]]
"""Reads the corpus: the tokenizer, and every document, in pieces, with its split. Called only if the files are not
there yet."""


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
        raise ResourceError("there is no home folder to keep token files in; set XDG_CACHE_HOME to a folder") from error


def token_files(folder: Path, key: str, source: Source) -> TokenFiles:
    """The token files for `key`, written first if they are not there. Every byte of them is verified.

    They are written in a temporary folder that is renamed when it is complete, so that a reader sees all or nothing,
    and of two writers one wins while both go on with the same content. What killed processes left is removed.

    Args:
        folder: of all token files.
        key: names the content: a hash of the corpus, its splits and the tokenizer.
        source: reads the corpus.

    Raises:
        ResourceError: the folder cannot be written.
        DataError: the files are there but damaged; or the corpus is.
    """
    path = folder / key
    sweep(folder)
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with partial(path.with_name(f"partial-{key}")) as new:
                _write(new, key, source)
                new.rename(path)
        except OSError as error:
            if not path.exists():  # what a faster process wrote is the same: the key says so
                raise ResourceError(
                    f"cannot write token files to {folder}: {error.strerror}; set XDG_CACHE_HOME to "
                    "a folder that can be written, or name one, in Python TextConfig(cache=...)"
                ) from error
    return _read(path)


def _write(folder: Path, key: str, source: Source) -> None:
    tokenizer, documents = source()
    dtype = np.dtype(
        np.uint8 if tokenizer.vocab_size <= 1 << 8 else np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    )
    measured, progress = () if isinstance(tokenizer, Tokenizer) else _MEASURED, Ticking("tokens written")
    starts = {split: array("q", [0]) for split in SPLITS}
    with ExitStack() as stack:
        names = (*(f"{split}.ids" for split in SPLITS), *measured)
        files = {name: stack.enter_context((folder / name).open("wb")) for name in names}
        for split, pieces in documents:
            text = "".join(pieces) if measured else ""
            starts[split].append(starts[split][-1])
            for ids, nbytes in tokenizer.in_pieces([text] if measured else pieces):
                files[f"{split}.ids"].write(ids.astype(dtype).tobytes())
                starts[split][-1] += ids.size
                progress(sum(each[-1] for each in starts.values()))
                if measured:
                    files[f"{split}.nbytes"].write(nbytes.astype(_NBYTES).tobytes())
                    files[f"{split}.text"].write(text.encode()[: int(nbytes.sum())])
    for split in SPLITS:
        np.save(folder / f"{split}.starts.npy", np.array(starts[split], np.int64))
    tokenizer.save(folder / "tokenizer.json")
    (folder / "meta.json").write_text(json.dumps({"dtype": dtype.name, "key": key}), encoding="utf-8")
    checksums.write_manifest(folder, (*_FILES, *measured))


def _read(path: Path) -> TokenFiles:
    try:
        checksums.verify(path, _FILES)
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        if meta["key"] != path.name:
            raise ValueError(f"they belong to {meta['key']}")
        dtype = np.dtype(meta["dtype"])
        tokenizer = tokenizer_from_json((path / "tokenizer.json").read_text(encoding="utf-8"))
        measured = not isinstance(tokenizer, Tokenizer)
        if measured:
            checksums.verify(path, _MEASURED)
        splits: dict[Split, Tokens] = {}
        for split in SPLITS:
            starts = np.load(path / f"{split}.starts.npy", allow_pickle=False)
            ids = _mapped(path / f"{split}.ids", dtype)
            nbytes = _mapped(path / f"{split}.nbytes", _NBYTES) if measured else None
            text = _mapped(path / f"{split}.text", np.dtype(np.uint8)) if measured else None
            splits[split] = Tokens(ids, starts, nbytes, text)
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, DataError) as error:
        raise DataError(
            f"the token files in {path} are damaged ({error}): delete that folder, it is written anew"
        ) from error
    return TokenFiles(tokenizer, splits)


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """The numbers in a file; none cannot be mapped."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
