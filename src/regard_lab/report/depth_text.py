"""Text coloured by the blocks that each token took: the shades, their legend, and the words that tell them."""

from collections.abc import Sequence
from dataclasses import dataclass

COLOURS = ("#5e81f4", "#3bb3c3", "#4caf50", "#e0a000", "#e4572e")
"""from the fewest blocks to all of them"""


@dataclass(frozen=True)
class Token:
    """text: of one token. taken: blocks that it took. shade: place of its colour."""

    text: str
    taken: int
    shade: int


def shade(taken: int, most: int) -> int:
    """The place in `COLOURS` of a token that took so many of so many blocks.

    Example:
        >>> [shade(taken, 6) for taken in range(1, 7)]
        [0, 0, 1, 2, 3, 4]
    """
    return min(len(COLOURS) - 1, (taken - 1) * len(COLOURS) // max(most, 1))


def tokens(pieces: Sequence[tuple[str, int]], most: int) -> list[Token]:
    """The tokens of a text with their shades."""
    return [Token(text, taken, shade(taken, most)) for text, taken in pieces]


def legend(most: int) -> list[tuple[int, str]]:
    """(shade, the numbers that it stands for) of every shade that a token may have.

    Example:
        >>> legend(3)
        [(0, '1'), (1, '2'), (3, '3')]
        >>> legend(8)
        [(0, '1 to 2'), (1, '3 to 4'), (2, '5'), (3, '6 to 7'), (4, '8')]
    """
    found: dict[int, list[int]] = {}
    for taken in range(1, most + 1):
        found.setdefault(shade(taken, most), []).append(taken)
    return [(at, str(some[0]) if len(some) == 1 else f"{some[0]} to {some[-1]}") for at, some in found.items()]
