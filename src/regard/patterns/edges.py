"""The pairs of a list of edges: looked up one by one, and found in squares of positions without a table of them all."""

import math
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.core.errors import ConfigError, InputError, ShapeError
from regard.patterns.intervals import Possibility, Span


class Edges:
    """A rule: position i sees position j where (i, j) is an edge. Memory: a number for each edge, and for each edge
    and each size of squares that was asked for.

    Args:
        pairs: (2, edges) integers; row 0 the positions that see, row 1 those that are seen. An edge that is there twice
            counts once: a rule holds or does not.
        nodes: positions are 0 .. nodes - 1; None: up to the largest of the edges.
        loops: every node sees itself too.

    Raises:
        ShapeError: no integers (2, edges).
        InputError: an edge to a node that is none.
        ConfigError: `nodes` below 1, or more than squares of their number can be counted.
    """

    def __init__(self, pairs: Int[Tensor, "2 edges"], nodes: int | None = None, *, loops: bool = False) -> None:
        if not isinstance(pairs, Tensor) or pairs.ndim != 2 or len(pairs) != 2 or pairs.dtype not in _INTEGERS:
            said = f"{pairs.dtype} {tuple(pairs.shape)}" if isinstance(pairs, Tensor) else type(pairs).__name__
            raise ShapeError(f"edges must be integers (2, edges), the seeing and the seen position of each; got {said}")
        pairs = pairs.detach().to("cpu", torch.int64)
        count = (int(pairs.max()) + 1 if pairs.numel() else 1) if nodes is None else nodes
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_NODES:
            raise ConfigError(f"nodes of edges must be an integer from 1 to {_MOST_NODES}, got {count!r}")
        wrong = ((pairs < 0) | (pairs >= count)).any(0).nonzero().flatten()
        if len(wrong):
            at = int(wrong[0])
            raise InputError(
                f"edge {at} is {tuple(pairs[:, at].tolist())}, and nodes are 0 to {count - 1}; {len(wrong)} of "
                f"{pairs.shape[1]} edges are wrong"
            )
        codes = pairs[0] * count + pairs[1]
        if loops:
            codes = torch.cat([codes, torch.arange(count) * (count + 1)])
        self.nodes, self.codes = count, codes.unique()
        self._squares: dict[int, Tensor] = {}

    @property
    def pairs(self) -> Int[Tensor, "2 edges"]:
        """Every edge once, in the order of the position that sees, then of the one that is seen."""
        return torch.stack([self.codes // self.nodes, self.codes % self.nodes])

    @property
    def distances(self) -> tuple[int, int]:
        """Lowest and highest i - j of an edge."""
        if not len(self.codes):
            return 0, 0
        gaps = self.pairs[0] - self.pairs[1]
        return int(gaps.min()), int(gaps.max())

    def __call__(self, i: Any, j: Any) -> Any:
        """Whether there is the edge; of spans, whether one may be among their pairs."""
        if isinstance(i, Span):
            may = self._meet(i, j)
            return Possibility(may, may & (i.lo == i.hi) & (j.lo == j.hi))
        real = (i >= 0) & (i < self.nodes) & (j >= 0) & (j < self.nodes)
        return _among(i * self.nodes + j, self.codes) & real

    def _meet(self, i: Span, j: Span) -> Tensor:
        """Whether an edge lies in one of the squares, of the smallest size at which they are two a side, that the pairs
        of two spans touch.
        """
        last = self.nodes - 1
        low, high = torch.broadcast_tensors(i.lo, j.lo), torch.broadcast_tensors(i.hi, j.hi)
        inside = (low[0] <= last) & (low[1] <= last) & (high[0] >= 0) & (high[1] >= 0)
        low, high = [x.clamp(0, last) for x in low], [x.clamp(0, last) for x in high]
        longest = torch.maximum(high[0] - low[0], high[1] - low[1])
        found = torch.zeros_like(inside)
        sizes = torch.ceil(torch.log2(longest.double() + 1)).long()
        for size in sizes.unique().tolist():
            squares, across = self._occupied(size, found.device), (self.nodes >> size) + 1
            met = torch.zeros_like(found)
            for row in (low[0], high[0]):
                for column in (low[1], high[1]):
                    met |= _among((row >> size) * across + (column >> size), squares)
            found = torch.where(sizes == size, met, found)
        return found & inside

    def _occupied(self, size: int, device: torch.device) -> Tensor:
        """The squares of 2^size positions a side that hold an edge, as sorted numbers."""
        if size not in self._squares:
            rows, columns = self.pairs >> size
            self._squares[size] = (rows * ((self.nodes >> size) + 1) + columns).unique()
        return self._squares[size].to(device)


_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_MOST_NODES = math.isqrt(2**62)


def _among(codes: Tensor, known: Tensor) -> Tensor:
    """Whether each number is one of the sorted ones."""
    known = known.to(codes.device)
    if not len(known):
        return torch.zeros_like(codes, dtype=torch.bool)
    return known[torch.searchsorted(known, codes.contiguous()).clamp(max=len(known) - 1)] == codes


def dealt_blocks(nodes: int, blocks: int, seed: int) -> Int[Tensor, " nodes"]:
    """The block of every node: as many of each as there can be, in any order, so that its number says nothing."""
    return torch.randperm(nodes, generator=torch.Generator().manual_seed(seed)) % blocks


def drawn_blocks(nodes: int, blocks: int, inside: int, outside: int, seed: int) -> Int[Tensor, "2 edges"]:
    """The edges of a stochastic block model, both directions of each: a node has `inside` neighbours of its block and
    `outside` others, on the average.

    Pairs are drawn by their number and not one by one, with memory for the edges alone; one that is drawn twice counts
    once, so that large shares of all pairs come out a little smaller.

    Raises:
        ConfigError: more than half of all pairs, which are not so few that a list is what one wants.

    Source: Holland, Laskey & Leinhardt 1983.
    """
    own = -(-nodes // blocks)
    if 2 * inside > own - 1 or 2 * outside > nodes - own:
        raise ConfigError(
            f"a block model of {nodes} nodes in {blocks} blocks has at most half of all pairs: inside up to "
            f"{(own - 1) // 2} and outside up to {(nodes - own) // 2}, got {inside} and {outside}"
        )
    draw = torch.Generator().manual_seed(seed)
    of = dealt_blocks(nodes, blocks, seed)
    ends = []
    for expected, same in ((inside, True), (outside, False)):
        count = round(nodes * expected / 2)
        kept: list[Tensor] = []
        while sum(x.shape[1] for x in kept) < count:
            pairs = torch.randint(nodes, (2, max(4 * count, 64)), generator=draw)
            alike = of[pairs[0]] == of[pairs[1]]
            kept.append(pairs[:, (alike == same) & (pairs[0] != pairs[1])])
        ends.append(torch.cat(kept, 1)[:, :count] if kept else torch.empty(2, 0, dtype=torch.int64))
    edges = torch.cat(ends, 1)
    return torch.cat([edges, edges.flip(0)], 1)
