"""Exact search: the k nearest keys of every query, by blocks, whatever the datastore holds."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import CheckpointError, ConfigError, LimitError, ShapeError
from regard.reading import plain

_QUERIES = 1024
"""that are compared with a piece of the keys at a time"""
_NUMBERS = 1 << 23
"""float32 numbers in the keys of a piece and its distances: 32 MiB"""
_SPARE = 32
"""candidates beyond k: their distances as |q|^2 - 2 q . k + |k|^2 lose digits to cancellation, and decide nothing"""
_GATHERED = 1 << 22
"""numbers of the candidates' keys that are held at a time"""


class Neighbours(NamedTuple):
    """The nearest entries of every query, nearest first; of equal distances the earlier entry.

    distances: squared L2, float64. ids, values: of the entries, int64. Where there are fewer than k (an own entry was
    left out), distance inf, id -1 and value 0.
    """

    distances: Float[Tensor, "queries k"]
    ids: Int[Tensor, "queries k"]
    values: Int[Tensor, "queries k"]


class Piece(NamedTuple):
    """Entries from number `first` on: a memory map of keys, float16 (entries, dim), and one of values, int32."""

    first: int
    keys: np.ndarray
    values: np.ndarray


def mapped(path: Path, kind: str, count: int) -> np.ndarray:
    """The numbers of a file, as a map that holds no descriptor: a process has few of them, and a datastore many blocks.

    It is copy-on-write: nothing is ever written, and torch takes no memory that says it is read-only.

    Raises:
        OSError: there is no such plain file, or no room in the address space.
    """
    with plain(path):
        pass
    same = {"<f2": torch.float16, "<i4": torch.int32}[kind]
    try:
        name: Any = os.fsencode(path)
        return torch.from_file(name, shared=False, size=count, dtype=same).numpy().view(kind)
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)} ({error})", str(path)) from error


def require_query(queries: Tensor, k: int, own: Tensor | None, *, dim: int, entries: int) -> None:
    """Refuse a search that has no answer.

    Raises:
        CheckpointError: a datastore without entries. ConfigError: k below 1. LimitError: k above the entries.
        ShapeError: queries of another width, or own entries that are not one row for each query.
    """
    if not entries:
        raise CheckpointError("the datastore is empty, so there is nothing to find; add documents to it")
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    if k > entries:
        raise LimitError(f"k={k} neighbours, and the datastore has {entries} entries; choose a smaller k")
    if queries.ndim != 2 or queries.shape[1] != dim or not queries.is_floating_point():
        raise ShapeError(f"queries must be float (queries, {dim}), got {queries.dtype} {tuple(queries.shape)}")
    if own is not None and (own.ndim != 2 or len(own) != len(queries) or own.is_floating_point()):
        raise ShapeError(f"own must be integers ({len(queries)}, copies), got {own.dtype} {tuple(own.shape)}")


def nearest(
    pieces: Sequence[Piece], queries: Float[Tensor, "queries dim"], k: int, own: Int[Tensor, "queries copies"] | None
) -> Neighbours:
    """The k nearest entries: candidates by matrix products, piece by piece, then their distances from the stored keys.

    Memory: 32 MiB for a piece, 1,024 (k + 32) candidates, and 16 MiB of their keys; never the keys of all.
    """
    found = [
        ranked(pieces, x, _candidates(pieces, x, k, None if own is None else own[first : first + _QUERIES]), k)
        for first in range(0, len(queries), _QUERIES)
        for x in (queries[first : first + _QUERIES],)
    ]
    if not found:
        return ranked(pieces, queries, torch.empty(0, k, dtype=torch.int64), k)
    return Neighbours(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _candidates(pieces: Sequence[Piece], queries: Tensor, k: int, own: Tensor | None) -> Tensor:
    """Numbers of the nearest entries by products in float32; -1 where there is none."""
    wanted = k + _SPARE
    rows = len(queries)
    queries = queries.float()
    best = torch.full((rows, 0), torch.inf)
    ids = torch.zeros(rows, 0, dtype=torch.int64)
    for piece in pieces:
        step = max(1, _NUMBERS // (piece.keys.shape[1] + rows))
        for at in range(0, len(piece.keys), step):
            keys = torch.from_numpy(piece.keys[at : at + step]).float()
            far = torch.addmm((keys * keys).sum(1), queries, keys.T, alpha=-2)  # |q|^2 orders nothing
            begin = piece.first + at
            if own is not None:
                column = own - begin
                here = (column >= 0) & (column < len(keys))
                row = torch.arange(rows)[:, None].expand_as(column)
                far[row[here], column[here]] = torch.inf
            few, place = far.topk(min(wanted, far.shape[1]), largest=False)
            best, ids = torch.cat([best, few], 1), torch.cat([ids, place + begin], 1)
            best, kept = best.topk(min(wanted, best.shape[1]), largest=False)
            ids = ids.gather(1, kept)
    return ids.masked_fill(best.isinf(), -1)


def ranked(
    pieces: Sequence[Piece], queries: Tensor, candidates: Int[Tensor, "queries candidates"], k: int
) -> Neighbours:
    """The k nearest of some candidates, by sum_d (q_d - k_d)^2 of the stored keys, summed in float64.

    Args:
        pieces: of all entries.
        queries: (queries, dim).
        candidates: numbers of entries; -1: none.
        k: at least as many candidates.
    """
    starts = np.array([piece.first for piece in pieces])
    numbers = candidates.numpy()
    distances = torch.full(candidates.shape, torch.inf, dtype=torch.float64)
    values = torch.zeros(candidates.shape, dtype=torch.int64)
    wide = candidates.shape[1] * queries.shape[1]
    step = max(1, _GATHERED // max(1, wide))
    for first in range(0, len(queries), step):
        some = numbers[first : first + step]
        row, column = np.nonzero(some >= 0)
        entry = some[row, column]
        of_piece = np.searchsorted(starts, entry, side="right") - 1
        for at in np.unique(of_piece):
            chosen = of_piece == at
            place = entry[chosen] - starts[at]
            key = torch.from_numpy(pieces[at].keys[place]).float()
            gap = queries[first + row[chosen]].float() - key
            where = torch.from_numpy(row[chosen] + first), torch.from_numpy(column[chosen])
            distances[where] = gap.square_().sum(1, dtype=torch.float64)
            values[where] = torch.from_numpy(pieces[at].values[place].astype(np.int64))
    by_number = candidates.argsort(dim=1, stable=True)  # equal distances: the earlier entry
    order = by_number.gather(1, distances.gather(1, by_number).argsort(dim=1, stable=True))[:, :k]
    return Neighbours(distances.gather(1, order), candidates.gather(1, order), values.gather(1, order))
