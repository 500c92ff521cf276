"""Exact search: the k nearest keys of every query, by blocks, whatever the datastore holds."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.errors import CheckpointError, ConfigError, LimitError, NumericsError, ShapeError
from regard.files.reading import plain

_QUERIES = 1024
"""that are compared with a piece of the keys at a time"""
_NUMBERS = 1 << 23
"""float32 numbers in the keys of a piece and its distances: 32 MiB"""
_SPARE = 32
"""candidates beyond k: the products that find them lose digits to cancellation, and decide nothing"""
_SLACK = 1e-6
"""relative, for what is rounded in a distance itself"""
_MOST = 1e6
"""in a query: far beyond what a key can be, whose distances from it are all but equal"""
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
        NumericsError: queries that are not finite, or far beyond what a key can be.
    """
    if not entries:
        raise CheckpointError("the datastore is empty, so there is nothing to find; add documents to it")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ConfigError(f"k must be an integer of at least 1, got {k}")
    if k > entries:
        raise LimitError(f"k={k} neighbours, and the datastore has {entries} entries; choose a smaller k")
    if queries.ndim != 2 or queries.shape[1] != dim or not queries.is_floating_point():
        raise ShapeError(f"queries must be float (queries, {dim}), got {queries.dtype} {tuple(queries.shape)}")
    if not (queries.abs() < _MOST).all():
        raise NumericsError(f"queries must be finite and below {_MOST:g}: what made them diverged")
    if own is not None and (own.ndim != 2 or len(own) != len(queries) or own.is_floating_point()):
        raise ShapeError(f"own must be integers ({len(queries)}, copies), got {own.dtype} {tuple(own.shape)}")


def nearest(
    pieces: Sequence[Piece], queries: Float[Tensor, "queries dim"], k: int, own: Int[Tensor, "queries copies"] | None
) -> Neighbours:
    """The k nearest entries: candidates by matrix products, piece by piece, then their distances from the stored keys.

    A product says how near a key is at least, whatever was rounded in it. Where the nearest key that is no candidate
    might be as near as the last of the k, as behind many equal ones, the keys are read once more for those queries.

    Memory: 32 MiB for a piece, 1,024 (k + 32) candidates, and 16 MiB of their keys; never the keys of all.
    """
    found = [
        _nearest(pieces, queries[at : at + _QUERIES], k, None if own is None else own[at : at + _QUERIES])
        for at in range(0, len(queries), _QUERIES)
    ]
    if not found:
        return ranked(pieces, queries, torch.empty(0, k, dtype=torch.int64), k)
    return Neighbours(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _nearest(pieces: Sequence[Piece], queries: Tensor, k: int, own: Tensor | None) -> Neighbours:
    queries, middle = queries.float(), _middle(pieces)
    candidates, beyond = _candidates(pieces, middle, queries, k, own)
    found = ranked(pieces, queries, candidates, k)
    last = found.distances[:, -1]
    unsure = (last * (1 + _SLACK) >= beyond).nonzero()[:, 0]
    if not len(unsure):
        return found
    some = _within(pieces, middle, queries[unsure], k, None if own is None else own[unsure], last[unsure])
    again = ranked(pieces, queries[unsure], some, k)
    return Neighbours(*(x.index_copy(0, unsure, y) for x, y in zip(found, again, strict=True)))


def _least(
    pieces: Sequence[Piece], middle: Tensor, queries: Tensor, own: Tensor | None
) -> Iterator[tuple[int, Float[Tensor, "queries keys"]]]:
    """Some keys at a time: the number of the first, and the least that each one's |q - k|^2 - |q|^2 can be.

    With q and k from the middle of some keys c on, as q' = q - c and k' = k - c, it is |k'|^2 - 2 q' . k' but for what
    is rounded in n products and sums, at most n u (|k'|^2 + 2 |q'| |k'|), which is taken off twice. `own` entries are
    at infinity.
    """
    rows, dim = queries.shape
    part = 2 * (dim + 8) * 2.0**-24
    queries = (queries.double() - middle).float()
    queries = torch.cat([queries, part * queries.norm(dim=1, keepdim=True)], 1)
    for piece in pieces:
        step = max(1, _NUMBERS // (dim + rows))
        for at in range(0, len(piece.keys), step):
            some = torch.from_numpy(piece.keys[at : at + step])
            keys = torch.empty(len(some), dim + 1)
            torch.linalg.vector_norm(keys[:, :dim].copy_(some).sub_(middle), dim=1, out=keys[:, dim])
            far = torch.addmm((1 - part) * keys[:, dim].square(), queries, keys.T, alpha=-2)
            begin = piece.first + at
            if own is not None:
                column = own - begin
                here = (column >= 0) & (column < len(keys))
                row = torch.arange(rows)[:, None].expand_as(column)
                far[row[here], column[here]] = torch.inf
            yield begin, far


def _middle(pieces: Sequence[Piece]) -> Float[Tensor, "dim"]:
    """About where keys are: the farther from there, the more is rounded."""
    some = pieces[0].keys
    return torch.from_numpy(some[:: -(-len(some) // 256)].astype(np.float32)).mean(0)


def _squared(queries: Tensor, middle: Tensor) -> Float[Tensor, "queries"]:
    """The least that |q'|^2 of `_least` can be."""
    return (queries.double() - middle).square().sum(1) * (1 - _SLACK)


def _candidates(
    pieces: Sequence[Piece], middle: Tensor, queries: Tensor, k: int, own: Tensor | None
) -> tuple[Int[Tensor, "queries candidates"], Float[Tensor, "queries"]]:
    """Numbers of the entries that may be nearest, -1 where there is none; no other one is nearer than the second."""
    wanted, rows = k + _SPARE, len(queries)
    best = torch.full((rows, 0), torch.inf)
    ids = torch.zeros(rows, 0, dtype=torch.int64)
    seen = 0
    for begin, far in _least(pieces, middle, queries, own):
        few, place = far.topk(min(wanted, far.shape[1]), largest=False)
        best, ids = torch.cat([best, few], 1), torch.cat([ids, place + begin], 1)
        best, kept = best.topk(min(wanted, best.shape[1]), largest=False)
        ids = ids.gather(1, kept)
        seen += far.shape[1]
    beyond = best.amax(1).double() + _squared(queries, middle)
    return ids.masked_fill(best.isinf(), -1), beyond if seen > wanted else beyond.new_full((rows,), torch.inf)


def _within(
    pieces: Sequence[Piece],
    middle: Tensor,
    queries: Tensor,
    k: int,
    own: Tensor | None,
    most: Float[Tensor, "queries"],
) -> Int[Tensor, "queries k"]:
    """Numbers of the k nearest entries, of which none is farther than `most`; -1 where there are fewer."""
    room = most * (1 + _SLACK) - _squared(queries, middle)
    row, ids, far = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    for begin, least in _least(pieces, middle, queries, own):
        near = (least <= room[:, None]) & least.isfinite()
        more, column = (x.numpy() for x in near.nonzero(as_tuple=True))
        if not len(more):
            continue
        distances, _ = _measured(pieces, queries, more, column + begin)
        row, ids = np.concatenate([row, more]), np.concatenate([ids, column + begin])
        far = np.concatenate([far, distances.numpy()])
        order = np.lexsort((ids, far, row))
        row, ids, far = row[order], ids[order], far[order]
        kept = np.arange(len(row)) - np.searchsorted(row, row) < k
        row, ids, far = row[kept], ids[kept], far[kept]
    found = np.full((len(queries), k), -1, np.int64)
    found[row, np.arange(len(row)) - np.searchsorted(row, row)] = ids
    return torch.from_numpy(found)


def _measured(
    pieces: Sequence[Piece], queries: Tensor, row: np.ndarray, entry: np.ndarray
) -> tuple[Float[Tensor, "pairs"], Int[Tensor, "pairs"]]:
    """sum_d (q_d - k_d)^2 of queries and stored keys, pair by pair, in float64; and the values."""
    starts = np.array([piece.first for piece in pieces])
    distances, values = torch.empty(len(row), dtype=torch.float64), torch.empty(len(row), dtype=torch.int64)
    step = max(1, _GATHERED // max(1, queries.shape[1]))
    for first in range(0, len(row), step):
        some = slice(first, first + step)
        of_piece = np.searchsorted(starts, entry[some], side="right") - 1
        for at in np.unique(of_piece):
            chosen = np.nonzero(of_piece == at)[0] + first
            place = entry[chosen] - starts[at]
            gap = queries[row[chosen]].double() - torch.from_numpy(pieces[at].keys[place]).double()
            distances[chosen] = gap.square_().sum(1)
            values[chosen] = torch.from_numpy(pieces[at].values[place].astype(np.int64))
    return distances, values


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
    numbers = candidates.numpy()
    row, column = np.nonzero(numbers >= 0)
    distances = torch.full(candidates.shape, torch.inf, dtype=torch.float64)
    values = torch.zeros(candidates.shape, dtype=torch.int64)
    distances[row, column], values[row, column] = _measured(pieces, queries, row, numbers[row, column])
    by_number = candidates.argsort(dim=1, stable=True)  # equal distances: the earlier entry
    order = by_number.gather(1, distances.gather(1, by_number).argsort(dim=1, stable=True))[:, :k]
    return Neighbours(distances.gather(1, order), candidates.gather(1, order), values.gather(1, order))
