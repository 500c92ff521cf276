"""Inverted lists: keys by the nearest of some centres, of which a query looks into the nearest alone."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from regard.core import approximate
from regard.core.errors import UnsupportedError

_FULL = 8
"""keys for each centre, before centres are drawn"""
_LEARNT = 64
"""keys for each centre that centres are drawn from, at most"""
_SEEDS = (1 << 31) - 1
"""that FAISS tells apart"""
_TURNS = 10
"""of k-means"""
_FEW = 64
"""queries of a head at most for whose successors the lists are kept: those of decoding ask the same keys again"""
_BUFFER = 1 << 22
"""scores that are held at a time"""


class Lists(NamedTuple):
    """What finds the keys of a memory, for each row and head of keys.

    centres: (batch, kv_heads, centres, dim), zeros before they are drawn. of: (batch, kv_heads, slots, 1), int32, the
    centre of each key.
    """

    centres: Tensor
    of: Tensor

    @property
    def drawn(self) -> Tensor:
        """(batch,): rows that have centres."""
        return self.centres.flatten(1).any(1)


def count(pairs: int) -> int:
    """How many centres a memory of so many pairs has: the root of them."""
    return max(1, round(pairs**0.5))


def draws(age: int, pairs: int) -> int:
    """How often centres were drawn when so many real positions were written.

    First of 8 keys for each centre, or of a full memory; whenever there are twice as many, up to a full one; and
    whenever a full one was written anew.
    """
    first = min(pairs, _FULL * count(pairs))
    if age < first:
        return 0
    return 1 + int(math.log2(min(age, pairs) / first)) + age // pairs


def faiss() -> Any:
    """The library, which from now on takes as many CPU threads in this thread as torch.

    Raises:
        UnsupportedError: it is not installed, or what it is to read is not there yet.
    """
    if torch.compiler.is_compiling():
        raise UnsupportedError(
            "memorizing(index='ivf') asks FAISS, which torch.compile does not see through; build it with index='exact'"
        )
    return approximate.faiss("memorizing(index='ivf')", "index='exact' works without it")


def centres_of(keys: Float[Tensor, "keys dim"], wanted: int, seed: int) -> Float[Tensor, "centres dim"]:
    """Centres of keys of norm 1, by k-means on the sphere; zeros of fewer keys than centres."""
    if len(keys) < wanted:
        return keys.new_zeros(wanted, keys.shape[1])
    x = np.ascontiguousarray(keys.float().nan_to_num().cpu().numpy())
    sizes = {"min_points_per_centroid": 1, "max_points_per_centroid": _LEARNT}
    learner = faiss().Kmeans(x.shape[1], wanted, niter=_TURNS, spherical=True, seed=seed % _SEEDS, **sizes)
    learner.train(x)
    return torch.from_numpy(learner.centroids.copy()).to(keys)


def nearest(
    keys: Float[Tensor, "batch kv_heads keys dim"], centres: Float[Tensor, "batch kv_heads centres dim"]
) -> Int[Tensor, "batch kv_heads keys 1"]:
    """The centre with the largest inner product, for every key."""
    step = max(1, _BUFFER // (centres.shape[0] * centres.shape[1] * centres.shape[2] or 1))
    with torch.autocast(keys.device.type, enabled=False):
        wide = centres.float().mT
        found = [(part.float() @ wide).argmax(-1, keepdim=True) for part in keys.split(step, 2)]
    return torch.cat(found, 2).int() if found else keys.new_zeros(*keys.shape[:3], 1, dtype=torch.int32)


def drawn_anew(
    lists: Lists, keys: Float[Tensor, "batch kv_heads slots dim"], real: Tensor | None, rows: list[int], seed: int
) -> Lists:
    """Lists of some rows with centres of the keys that are there, which are sorted by these."""
    centres, of = lists.centres.clone(), lists.of.clone()
    for row in rows:
        for head in range(keys.shape[1]):
            there = keys[row, head] if real is None else keys[row, head, real[row]]
            centres[row, head] = centres_of(there, centres.shape[2], seed)
        of[row] = nearest(keys[row : row + 1], centres[row : row + 1])[0]
    return Lists(centres, of)


def found(
    q: Float[Tensor, "batch heads queries dim"],
    keys: Float[Tensor, "batch kv_heads slots dim"],
    real: Tensor | None,
    lists: Lists,
    *,
    rows: Bool[Tensor, " batch"],
    top: int,
    probes: int,
) -> Int[Tensor, "batch heads queries top"]:
    """The places of the `top` keys with the largest inner products in the lists of the nearest centres; -1: none.

    Args:
        rows: those that are searched.
    """
    kv, group = keys.shape[1], q.shape[1] // keys.shape[1]
    options = faiss().SearchParametersIVF(nprobe=min(probes, lists.centres.shape[2]))
    asked = q.detach().float().cpu().unflatten(1, (kv, group))
    places = torch.full((*asked.shape[:4], top), -1, dtype=torch.int64)
    kept = _kept(keys, real, lists) if group * q.shape[2] <= _FEW else {}
    for row in rows.nonzero()[:, 0].tolist():
        for head in range(kv):
            index = kept.get((row, head))
            if index is None:
                index = _index(keys[row, head], None if real is None else real[row], lists, row, head)
                if group * q.shape[2] <= _FEW:
                    kept[row, head] = index
            x = np.ascontiguousarray(asked[row, head].flatten(0, 1).numpy())
            places[row, head] = torch.from_numpy(index.search(x, top, params=options)[1]).unflatten(0, (group, -1))
    return places.flatten(1, 2).to(q.device)


def _index(keys: Tensor, real: Tensor | None, lists: Lists, row: int, head: int) -> Any:
    """FAISS's lists of the real keys of a row and head, under the numbers of their slots."""
    library = faiss()
    x, of = keys.float().cpu(), lists.of[row, head, :, 0].long().cpu()
    slots = torch.arange(len(x)) if real is None else real.cpu().nonzero()[:, 0]
    order = of[slots].argsort(stable=True)
    slots = slots[order]
    ends = of[slots].bincount(minlength=lists.centres.shape[2]).cumsum(0).tolist()
    coarse = library.IndexFlatIP(x.shape[1])
    coarse.add(np.ascontiguousarray(lists.centres[row, head].float().cpu().numpy()))
    index = library.IndexIVFFlat(coarse, x.shape[1], len(ends), library.METRIC_INNER_PRODUCT)
    index.referenced_objects = [coarse]  # which the index itself does not hold
    codes, numbers = x[slots].contiguous().view(torch.uint8).numpy(), slots.numpy()
    first = 0
    for each, end in enumerate(ends):
        if end > first:
            part, its = codes[first:end], numbers[first:end]
            index.invlists.add_entries(each, end - first, library.swig_ptr(its), library.swig_ptr(part))
        first = end
    index.ntotal = len(slots)
    return index


_INDICES: Any = WeakTensorKeyDictionary()
"""keys of a memory -> the mask, centres and lists that they were read with, and FAISS's of each row and head"""


def _kept(keys: Tensor, real: Tensor | None, lists: Lists) -> dict[tuple[int, int], Any]:
    """The lists that were made of these very tensors, as long as somebody holds the keys."""
    beside = (real, *lists)
    known, indices = _INDICES.get(keys, ((), {}))
    if len(known) != len(beside) or any(old is not new for old, new in zip(known, beside, strict=True)):
        indices = {}
        _INDICES[keys] = beside, indices
    return indices
