"""GGUF files: metadata and tensors of llama.cpp, read from a memory map with every offset checked first.

The `gguf` package turns blocks of 4 to 8 bits into numbers. Its own reader is not used: it cuts what is truncated short
without a word, and needs 3 s for a vocabulary of 49,152.
"""

import importlib
import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.core.errors import CheckpointError, UnsupportedError
from regard.files.reading import plain
from regard.integrations.weights import Stored, listed

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _Format(NamedTuple):
    """How numbers are stored: `block` of them in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


_FORMATS = {
    0: _Format("F32", 1, 4),
    1: _Format("F16", 1, 2),
    2: _Format("Q4_0", 32, 18),
    3: _Format("Q4_1", 32, 20),
    6: _Format("Q5_0", 32, 22),
    7: _Format("Q5_1", 32, 24),
    8: _Format("Q8_0", 32, 34),
    10: _Format("Q2_K", 256, 84),
    11: _Format("Q3_K", 256, 110),
    12: _Format("Q4_K", 256, 144),
    13: _Format("Q5_K", 256, 176),
    14: _Format("Q6_K", 256, 210),
    30: _Format("BF16", 1, 2),
}


class Gguf(NamedTuple):
    """metadata: key -> number, text or list of them. tensors: by name, axes in torch's order, read when asked."""

    metadata: dict[str, object]
    tensors: dict[str, Stored]


class _Cursor:
    """Reads little-endian values one after the other, never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, nbytes: int, what: str) -> bytes:
        end = self.at + nbytes
        if end > len(self.data):
            raise CheckpointError(
                f"{self.path} is truncated or damaged: {what} at byte {self.at} needs {nbytes} bytes; the file ends "
                f"at {len(self.data)}; fetch it again"
            )
        taken, self.at = self.data[self.at : end], end
        return taken

    def number(self, code: str, what: str) -> int | float | bool:
        value = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))[0]
        return float(str(np.float32(value))) if code == "f" else value  # the decimal that was meant: 1e-5

    def count(self, code: str, what: str) -> int:
        return int(self.number(code, what))

    def text(self, what: str) -> str:
        raw = self.take(self.count("Q", f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path} is damaged: {what} is no UTF-8 ({error.reason})") from error

    def value(self, kind: int, what: str) -> object:
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            inner, length = self.count("I", what), self.count("Q", what)
            if inner in _SCALARS:
                code = _SCALARS[inner]
                return np.frombuffer(self.take(length * struct.calcsize(f"<{code}"), what), f"<{code}").tolist()
            if inner == _STRING:
                return [self.text(what) for _ in range(length)]
            kind = inner
        elif kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        raise CheckpointError(f"{self.path} is damaged: {what} has the unknown type {kind} at byte {self.at}")


def read_gguf(path: Path) -> Gguf:
    """Open a GGUF file. Only the header is read; a tensor is when it is asked for.

    Raises:
        CheckpointError: no GGUF, another version, truncated, or tensors that are damaged or lie outside the file (all
            of them are listed).
        UnsupportedError: numbers in a format that is not read; or quantised ones without the `gguf` package.

    Source: the GGUF specification of ggml, versions 2 and 3.
    """
    try:
        with plain(path) as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise CheckpointError(f"cannot read {path}: {error}") from error
    cursor = _Cursor(path, data)
    if cursor.take(4, "the magic number") != _MAGIC:
        raise CheckpointError(f"{path} is no GGUF file: it begins with {data[:4]!r}, not {_MAGIC!r}")
    version = cursor.count("I", "the version")
    if version not in _VERSIONS:
        raise CheckpointError(f"{path} has GGUF version {version}; regard reads {_VERSIONS}, little-endian")
    num_tensors, num_values = cursor.count("Q", "the number of tensors"), cursor.count("Q", "the number of values")
    metadata: dict[str, object] = {}
    for at in range(num_values):
        key = cursor.text(f"metadata key {at}")
        metadata[key] = cursor.value(cursor.count("I", f"the type of {key}"), key)
    entries = [_entry(cursor, at) for at in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{path} is damaged: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    return Gguf(metadata, _tensors(path, data, start, entries))


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _entry(cursor: _Cursor, at: int) -> _Entry:
    name = cursor.text(f"the name of tensor {at}")
    axes = cursor.count("I", f"the axes of {name}")
    shape = struct.unpack(f"<{axes}Q", cursor.take(8 * axes, f"the shape of {name}"))
    return _Entry(name, shape[::-1], cursor.count("I", f"the format of {name}"), cursor.count("Q", name))


def _tensors(path: Path, data: mmap.mmap, start: int, entries: list[_Entry]) -> dict[str, Stored]:
    problems: list[str] = []
    tensors: dict[str, Stored] = {}
    unknown = sorted({entry.kind for entry in entries} - set(_FORMATS))
    if unknown:
        known = ", ".join(form.name for form in _FORMATS.values())
        raise UnsupportedError(f"{path} stores tensors in the GGUF formats number {unknown}; regard reads {known}")
    for entry in entries:
        form = _FORMATS[entry.kind]
        size = math.prod(entry.shape)
        nbytes, begin = size // form.block * form.nbytes, start + entry.offset
        if entry.name in tensors:
            problems.append(f"{entry.name} is there twice")
        if not entry.shape or entry.shape[-1] % form.block:
            problems.append(f"{entry.name}: shape {entry.shape} is not whole blocks of {form.block} ({form.name})")
        elif begin + nbytes > len(data):
            problems.append(f"{entry.name}: bytes {begin} to {begin + nbytes} are outside the file of {len(data)}")
        tensors[entry.name] = Stored(entry.shape, _reader(data, begin, entry.shape, form))
    if problems:
        raise CheckpointError(f"{path} is truncated or damaged; fetch it again:{listed(problems)}")
    return tensors


def _reader(data: mmap.mmap, begin: int, shape: tuple[int, ...], form: _Format) -> Callable[[], Tensor]:
    def read() -> Tensor:
        row = shape[-1] // form.block * form.nbytes
        raw = np.frombuffer(data, np.uint8, math.prod(shape[:-1]) * row, begin).reshape(*shape[:-1], row)
        return torch.from_numpy(_numbers(raw, form)).view(shape)

    return read


def _numbers(raw: np.ndarray, form: _Format) -> np.ndarray:
    """float32 from stored bytes; a copy."""
    if form.name == "F32":
        return raw.view("<f4").astype(np.float32)
    if form.name == "F16":
        return raw.view("<f2").astype(np.float32)
    if form.name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    try:
        quants = importlib.import_module("gguf.quants")
        kinds = importlib.import_module("gguf.constants").GGMLQuantizationType
    except ImportError as error:
        raise UnsupportedError(
            f"tensors in the format {form.name} need the gguf package: pip install 'regard[pretrained]'"
        ) from error
    return quants.dequantize(raw, kinds[form.name])
