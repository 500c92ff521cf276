"""Attention of a block of pixels to the rectangle around it, in the order of generation."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.patterns import Pattern


@final
class ImageLocal2d(Sparse):
    """Softmax over the pixels already generated in a rectangle: the query's block and the flange around it.

    The image is cut into blocks of h_q x w_q pixels. Slots follow the order of generation: blocks in raster order,
    pixels in raster order inside a block, channels inside a pixel. With (row, column) of a slot and the query's block
    from row R and column C on, the query sees the keys j <= i with row_j >= R - m_h and
    C - m_w <= column_j < C + w_q + m_w. So the block to the right, generated later, is not seen, and the one above it
    is. `query_block` = (h_q, w_q), `flange` = (m_h, m_w). `order` says which pixel of the image each slot is.
    Cost: O(length (h_q + m_h) (w_q + 2 m_w) channels dim) time, O(length) memory. What is lost: pixels outside the
    rectangle, which further layers reach block by block.
    State: the block-rows of height h_q + m_h: the current one, and the last m_h rows of pixels before it.

    Example:
        >>> from regard import Heads
        >>> heads = Heads(count=2, key_dim=4, causal=True)
        >>> attention = ImageLocal2d(heads, width=6, query_block=(2, 3), flange=(2, 3))
        >>> attention.order(height=2).argsort().reshape(2, 6).tolist()  # when each pixel is generated
        [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]

    Source: Parmar et al. 2018, section 3.3 (2D local attention); the default sizes are those of its public code.
    """

    default_info = Info(
        title="2D blocks of an image",
        source="Parmar et al. 2018, section 3.3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        time=1,
        state="window",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"width": 5, "query_block": (5, 1), "flange": (2, 1)},
        {"width": 5, "channels": 2, "query_block": (5, 1), "flange": (4, 2)},
        {"width": 2, "query_block": (1, 1), "flange": (3, 0), "scale": 0.7},
        {"width": 4, "query_block": (2, 2), "flange": (1, 1), "impl": "reference"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "it sees the pixels generated before",
        "cross": "a rectangle needs queries and keys in the same image",
    }

    width: Annotated[int, Ge(1)] = 32
    """pixels in a row of the image"""
    channels: Annotated[int, Ge(1)] = 1
    """consecutive slots of one pixel"""
    query_block: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]] = (8, 16)
    """rows and columns of a block; the columns divide `width`"""
    flange: tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]] = (8, 16)
    """rows above the block, and columns on either side of it, that it sees too"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Blocks of one pixel that see their own column alone know distances only."""
        info, lone = super().facts(options), options["query_block"] == (1, 1) and options["channels"] == 1
        straight = options["flange"][1] == 0 or options["width"] == 1
        return replace(info, anchored=False) if lone and straight else info

    def check_options(self) -> None:
        if self.width % self.query_block[1]:
            fitting = ", ".join(str(x) for x in range(1, self.width + 1) if self.width % x == 0)
            raise ConfigError(
                f"image_local_2d: blocks of {self.query_block[1]} columns do not divide width={self.width}; these do: "
                f"{fitting}"
            )

    def pairs(self) -> Pattern:
        """The generated part of the rectangle."""
        return _rectangle(self.width, self.channels, self.query_block, self.flange)

    def order(self, height: int) -> Int[Tensor, " slots"]:
        """Where in the raster each slot lies: pixels of `height` rows as (rows, columns, channels), flattened.

        `raster[order]` is the sequence to give, and `raster[order] = sequence` puts a generated one back.

        Raises:
            ConfigError: a height that is no multiple of the block's rows.
        """
        rows, columns = self.query_block
        if height < 1 or height % rows:
            raise ConfigError(f"image_local_2d: blocks of {rows} rows do not divide an image of height={height}")
        raster = torch.arange(height * self.width * self.channels)
        blocks = raster.view(height // rows, rows, self.width // columns, columns, self.channels).transpose(1, 2)
        return blocks.flatten()

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """Generated before, and inside the rectangle around the block of i."""
        (rows, columns), (above, beside) = self.query_block, self.flange
        height = -(-j.shape[1] // (rows * self.width * self.channels)) * rows  # as many rows as hold every key
        pixel = self.order(height).to(j.device) // self.channels
        row, column = pixel // self.width, pixel % self.width
        top, left = row[i] // rows * rows, column[i] // columns * columns
        return (j <= i) & (row[j] >= top - above) & (column[j] >= left - beside) & (column[j] < left + columns + beside)

    def kept_slots(self, length: int) -> int:
        """The current block-row, and the last m_h rows of pixels before it."""
        rows, row = self.query_block[0], self.width * self.channels
        blocks, inside = divmod(length, rows * row)
        return inside + min(self.flange[0], blocks * rows) * row


def place(pixel: Any, width: int, query_block: tuple[int, int]) -> tuple[Any, Any]:
    """Row and column of a pixel from its place in the order of generation: of places in a tensor, or of a span."""
    rows, columns = query_block
    inside = pixel % (rows * columns)
    row = pixel // (rows * width) * rows + inside // columns
    column = pixel % (rows * width) // (rows * columns) * columns + inside % columns
    return row, column


@lru_cache
def _rectangle(width: int, channels: int, query_block: tuple[int, int], flange: tuple[int, int]) -> Pattern:
    (rows, columns), (above, beside) = query_block, flange
    band = rows * width

    def rule(i: Any, j: Any) -> Any:
        pixel = i // channels
        row, column = place(j // channels, width, query_block)
        top, left = pixel // band * rows, pixel % band // (rows * columns) * columns
        return (j <= i) & (row >= top - above) & (column >= left - beside) & (column < left + columns + beside)

    farthest = (1 + -(-above // rows)) * band * channels - 1
    return Pattern(rule, distances=(0, farthest))
