"""The attention matrices of a layer in little: block means, where heads look, how widely, and their largest weights."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from regard.core.errors import RegardError
from regard.functional import weight_columns
from regard_lab.attention_maps.capture import Watched

Pair = tuple[int, int, float]
"""A query, a key and the weight that the one has on the other."""


@dataclass(frozen=True)
class LayerMaps:
    """The heads of a layer, by their effective attention matrix p.

    mechanism: its specification. causal: keys behind a query have no weight. cells: the mean over the queries of a
    block of the sum of p over the keys of a block; with blocks of 1 token p itself. distance, entropy, effective_keys:
    means over queries, under |p| / sum_j |p_ij|: of |i - j| in tokens, of the entropy in nats, and of its exponential.
    pairs: the largest |p|, exactly as computed; of a causal head without the first token's on itself, which is no
    choice.
    """

    mechanism: str
    causal: bool
    cells: Float32[np.ndarray, "heads blocks blocks"]
    distance: Float64[np.ndarray, " heads"]
    entropy: Float64[np.ndarray, " heads"]
    effective_keys: Float64[np.ndarray, " heads"]
    pairs: tuple[tuple[Pair, ...], ...]


@dataclass(frozen=True)
class NoMaps:
    """A layer that has no attention matrix, or none that is finite, and why."""

    mechanism: str
    reason: str


def reduce(call: Watched, mechanism: str, *, block: int, pairs: int) -> LayerMaps | NoMaps:
    """The maps of a layer, of the first row of the batch.

    Args:
        call: what the mechanism is called with.
        mechanism: its specification, for people.
        block: tokens in a block.
        pairs: how many of the largest weights.
    """
    if call.own_rows:
        return NoMaps(mechanism, "its global tokens have projections of their own, which no one matrix shows")
    length, heads = call.q.shape[2], call.q.shape[1]
    if call.k.shape[2] != length:
        return NoMaps(mechanism, f"{length} queries look at {call.k.shape[2]} keys, which are not the same tokens")
    info = call.mechanism.info
    sums = _Sums(heads, length, block, pairs, forced=call.mechanism.heads.causal and not info.leaks, like=call.q)
    try:
        for first, columns in weight_columns(
            call.mechanism,
            call.q[:1],
            call.k[:1],
            bias=call.bias,
            inputs={name: x[:1] for name, x in call.inputs.items()},
        ):
            sums.add(first, columns[0])
    except RegardError as error:
        return NoMaps(mechanism, str(error))
    return sums.maps(mechanism)


class _Sums:
    """What is summed up over the columns of the matrices of all heads. forced: the first query sees itself only."""

    def __init__(self, heads: int, length: int, block: int, pairs: int, *, forced: bool, like: Tensor) -> None:
        self.block, self.count, self.forced = block, -(-length // block), forced
        self.slots = torch.arange(length, device=like.device)
        wide = {"dtype": torch.float64, "device": like.device}
        self.total, self.distance, self.logarithms = torch.zeros(3, heads, length, **wide)
        self.cells = torch.zeros(heads, self.count, self.count, device=like.device)
        self.most = pairs  # values and places of the largest: query * length + key
        self.values = torch.zeros(heads, 0, device=like.device)
        self.places = torch.zeros(heads, 0, dtype=torch.int64, device=like.device)

    def add(self, first: int, columns: Tensor) -> None:
        """Columns (heads, rows, some) from `first` on, of the last rows; those before them are 0."""
        columns, length = columns.float(), len(self.slots)
        count, some = columns.shape[1:]
        start = length - count
        queries, keys, sizes = self.slots[start:], self.slots[first : first + some], columns.abs()
        self.total[:, start:] += sizes.sum(-1)
        self.logarithms[:, start:] += torch.xlogy(sizes, sizes).sum(-1)
        away = (queries[:, None] - keys).abs().to(sizes.dtype)
        self.distance[:, start:] += torch.linalg.vecdot(sizes, away)
        low = first // self.block
        inside = torch.nn.functional.one_hot(keys // self.block - low).to(columns.dtype)
        pooled = columns @ inside
        self.cells[..., low : low + inside.shape[1]].index_add_(1, queries // self.block, pooled)
        if self.forced and not start:
            sizes[:, 0] = 0
        best, at = sizes.flatten(1).topk(min(self.most, count * some), -1)
        values = torch.where(best > 0, columns.flatten(1).gather(1, at), 0)
        self.values = torch.cat([self.values, values], 1)
        self.places = torch.cat([self.places, (at // some + start) * length + first + at % some], 1)
        # of equal weights those of earlier keys, which stand first
        order = self.values.abs().sort(dim=-1, descending=True, stable=True).indices[:, : self.most]
        self.values, self.places = self.values.gather(1, order), self.places.gather(1, order)

    def maps(self, mechanism: str) -> LayerMaps | NoMaps:
        """What the sums come to."""
        if not bool(self.total.isfinite().all()):
            return NoMaps(mechanism, "its weights are not finite")
        length = len(self.slots)
        seen = self.total > 0
        total = torch.where(seen, self.total, 1.0)
        # -sum p/T log(p/T) = log T - sum p log p / T; rounding may leave a little below 0 of a row with one key
        entropy = (total.log() - self.logarithms / total).clamp_min(0)

        def mean(of_queries: Tensor) -> Float64[np.ndarray, " heads"]:
            return ((of_queries * seen).sum(-1) / seen.sum(-1).clamp_min(1)).cpu().numpy()

        sizes = torch.full((self.count,), self.block, device=self.cells.device)
        sizes[-1] = length - (self.count - 1) * self.block
        pairs = tuple(
            tuple((at // length, at % length, x) for at, x in zip(places, values, strict=True) if x)
            for places, values in zip(self.places.tolist(), self.values.tolist(), strict=True)
        )
        return LayerMaps(
            mechanism=mechanism,
            causal=self.forced,
            cells=(self.cells / sizes[:, None]).cpu().numpy(),
            distance=mean(self.distance / total),
            entropy=mean(entropy),
            effective_keys=mean(entropy.exp()),
            pairs=pairs,
        )
