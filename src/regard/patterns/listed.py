"""Patterns of pairs that are listed and not described, which have no text."""

from jaxtyping import Int
from torch import Tensor

from regard.patterns.edges import Edges
from regard.patterns.pattern import Pattern, require_size
from regard.patterns.picks import Picked


def random_blocks(size: int, table: Int[Tensor, "blocks picks"]) -> Pattern:
    """Key blocks picked for each query block: query block r sees key blocks table[r]; beyond the table, none.

    Args:
        size: positions in a block.
        table: picked key blocks; -1 picks nothing. It has no text, so `parse` cannot read such a pattern.
    """
    require_size(1, size=size)
    return Pattern(Picked(size, table.detach().clone()))


def edges(pairs: Int[Tensor, "2 edges"], nodes: int | None = None, *, loops: bool = False) -> Pattern:
    """The pairs of a list of edges, as of a graph: `pairs[0]` sees `pairs[1]`. It has no text.

    Nothing of all pairs is made: an edge is a number, kept in order. In tiles, which `pattern` computes, neighbours
    should have numbers near each other; `graph` computes edge by edge. The edge_index of PyTorch Geometric is
    `edges(edge_index.flip(0))`: its first row sends, and its second row sees.

    Args:
        pairs: (2, edges) integers; an edge that is there twice counts once.
        nodes: positions are 0 .. nodes - 1, and others see nothing; None: up to the largest of the edges.
        loops: every node sees itself too.

    Raises:
        ShapeError, InputError, ConfigError: as `regard.patterns.edges.Edges`.

    Example:
        >>> import torch
        >>> edges(torch.tensor([[0, 2], [1, 0]]), loops=True).mask(torch.arange(3), torch.arange(3)).int()
        tensor([[1, 1, 0],
                [0, 1, 0],
                [1, 0, 1]], dtype=torch.int32)
    """
    rule = Edges(pairs, nodes, loops=loops)
    return Pattern(rule, distances=rule.distances)
