"""Pointer chasing: queries whose answer is so many look-ups away, among others that are nearer."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard_lab.tasks.base import IGNORE

Chased = tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"], Int[Tensor, "batch queries"]]
"""tokens, what each should predict, IGNORE where nothing counts, and the hops of each query"""


def vocabulary(symbols: int, hops: int) -> int:
    """Tokens: an entry (s, f(s)) of the table each, and a query (s, hops) each."""
    return symbols * symbols + (hops + 1) * symbols


def chased(count: int, *, symbols: int, hops: int, queries: int, draw: torch.Generator, matter: bool = True) -> Chased:
    """Rows of a table of a random f over the symbols, and then queries (s, h) whose answer is f applied h times to s.

    Args:
        count: rows.
        symbols: s is one of 0, 1, ...
        hops: h is equally likely 0, 1, ... up to this.
        queries: of a row.
        draw: of everything.
        matter: False: the answer is s whatever h is, so that h is a label without a meaning.
    """
    f = torch.randint(symbols, (count, symbols), generator=draw)
    start = torch.randint(symbols, (count, queries), generator=draw)
    far = torch.randint(hops + 1, (count, queries), generator=draw)
    answer = start
    for hop in range(hops if matter else 0):
        answer = torch.where(far > hop, f.gather(1, answer), answer)
    tokens = torch.cat([torch.arange(symbols) * symbols + f, symbols * symbols + far * symbols + start], 1)
    return tokens, torch.cat([torch.full_like(f, IGNORE), answer], 1), far
