"""Shards of a checkpoint: files in which each of several processes wrote its part of every tensor.

`model.2-of-4.safetensors` and `optimizer.2-of-4.safetensors` are of the second of four processes. They are safetensors
as torch.distributed.checkpoint writes them (`HuggingFaceStorageWriter`): the header says where in a tensor each part
begins. Nothing in them is code, unlike in that library's own format, whose index is a pickle.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import safetensors.torch
import torch
from torch import Tensor

_NAME = re.compile(r"(\w+)\.(\d{1,5})-of-(\d{1,5})\.safetensors")
_PLACES, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""where torch.distributed.checkpoint notes the first index of each part of a tensor, in every dimension"""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""a part of a tensor: its first index in every dimension, and its sizes"""


def file_name(part: str, number: int, count: int) -> str:
    """The file of a process, counted from 1.

    Example:
        >>> file_name("model", 2, 4)
        'model.2-of-4.safetensors'
    """
    return f"{part}.{number}-of-{count}.safetensors"


def names(files: Iterable[str], part: str) -> list[str]:
    """The shards of a part of a checkpoint, all of them, in order.

    Raises:
        ValueError: there is none, or one is missing.
    """
    found = [match for match in map(_NAME.fullmatch, files) if match is not None and match[1] == part]
    counts = {int(match[3]) for match in found}
    if len(counts) != 1:
        raise ValueError(f"it has {'no' if not counts else 'several kinds of'} shards of the {part}")
    (count,), there = counts, {int(match[2]) for match in found}
    missing = sorted(set(range(1, count + 1)) - there)
    if missing:
        raise ValueError(f"shard {', '.join(map(str, missing[:5]))} of {count} of the {part} is missing")
    return [file_name(part, number, count) for number in range(1, count + 1)]


def joined(files: Mapping[str, bytes], part: str) -> dict[str, Tensor]:
    """The whole tensors of a part of a checkpoint, from the contents of its files.

    Raises:
        ValueError: a shard is missing; parts overlap or leave a gap. KeyError: a shard does not say where a part is.
        safetensors.SafetensorError: a file is none.
    """
    parts: dict[str, list[tuple[Box, Tensor]]] = {}
    for name in names(files, part):
        tensors, places = safetensors.torch.load(files[name]), _places(files[name])
        for key, x in tensors.items():
            parts.setdefault(key, []).append(((tuple(places[key]), tuple(x.shape)), x))
    return {key: _whole(key, found) for key, found in parts.items()}


def _places(data: bytes) -> dict[str, list[int]]:
    """Where the header of a file, which was read as safetensors already, says that each part of a tensor begins."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    places = json.loads(header["__metadata__"][_PLACES])
    return {key: place[_OFFSETS] for key, place in places.items()}


def _whole(key: str, found: Sequence[tuple[Box, Tensor]]) -> Tensor:
    whole = torch.empty(size_of(key, [box for box, _ in found]), dtype=found[0][1].dtype)
    for (first, sizes), x in found:
        whole[tuple(slice(at, at + size) for at, size in zip(first, sizes, strict=True))] = x
    return whole


def size_of(key: str, boxes: Collection[Box]) -> tuple[int, ...]:
    """The shape of a tensor whose parts are these.

    Raises:
        ValueError: they overlap or leave a gap.

    Example:
        >>> size_of("weight", [((0, 0), (2, 3)), ((2, 0), (1, 3))])
        (3, 3)
    """
    filled = [box for box in boxes if math.prod(box[1])]
    some = filled or list(boxes)
    ends = [tuple(at + size for at, size in zip(*box, strict=True)) for box in some]
    shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
    if math.prod(shape) != sum(math.prod(sizes) for _, sizes in filled):
        raise ValueError(f"the parts of {key} overlap or leave a gap")
    return shape
