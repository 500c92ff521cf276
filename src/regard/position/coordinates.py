"""Learned rows and columns of images."""

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, LimitError
from regard.core.info import Heads
from regard.position._base import Position


@final
class Coordinates(Position):
    """Adds [R_row, C_(column, channel)] to the hidden state of a slot: half of the dimensions for each coordinate.

    Slots are the channels of pixels, in raster order or, with `query_block`, block by block as `image_local_2d` has
    them. What one slot learns of its column holds in every row. A row has width x channels slots, and the table as many
    rows as `max_length` slots fill.

    Args:
        heads, dim: as `Position`; `heads.max_length` is the number of slots.
        width: pixels in a row of the image.
        channels: consecutive slots of one pixel.
        query_block: rows and columns of a block; None: raster order.
        std: standard deviation of the initial vectors.

    Raises:
        ConfigError: no `max_length`, sizes below 1, blocks that do not divide the width.
        LimitError: (on use) a position beyond the table.

    Example:
        >>> scheme = Coordinates(Heads(count=1, key_dim=8, max_length=12), 8, width=4, query_block=(1, 2))
        >>> [x.tolist() for x in scheme.places(torch.arange(6))]
        [[0, 0, 0, 0, 1, 1], [0, 1, 2, 3, 0, 1]]

    Source: Parmar et al. 2018, section 3.1 (the learned form).
    """

    title = "Image coordinates"
    absolute = True
    sized = True

    def __init__(
        self,
        heads: Heads,
        dim: int,
        *,
        width: int = 32,
        channels: int = 1,
        query_block: tuple[int, int] | None = None,
        std: float = 0.02,
    ) -> None:
        super().__init__(heads, dim)
        if heads.max_length is None:
            raise ConfigError("position coordinates needs max_length: the slots of an image")
        if min(width, channels, *(query_block or (1, 1))) < 1 or width % (query_block or (1, 1))[1]:
            raise ConfigError(
                "position coordinates needs width, channels and query_block of at least 1, and a block whose columns "
                f"divide the width; got {width=}, {channels=}, {query_block=}"
            )
        self.width, self.channels = width, channels
        self.block = (1, width) if query_block is None else query_block
        band = self.block[0] * width * channels
        drawn = generator(heads.seed, "coordinates")
        self.rows = nn.Parameter(
            std * torch.randn(-(-heads.max_length // band) * self.block[0], dim // 2, generator=drawn)
        )
        self.columns = nn.Parameter(std * torch.randn(width * channels, dim - dim // 2, generator=drawn))

    def places(self, positions: Int[Tensor, "*slots"]) -> tuple[Int[Tensor, "*slots"], Int[Tensor, "*slots"]]:
        """The row of each slot, and its column times the channels plus its channel."""
        (rows, columns), pixel = self.block, positions // self.channels
        inside = pixel % (rows * columns)
        row = pixel // (rows * self.width) * rows + inside // columns
        column = pixel % (rows * self.width) // (rows * columns) * columns + inside % columns
        return row, column * self.channels + positions % self.channels

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` plus both vectors."""
        most = len(self.rows) * len(self.columns)
        # Only shapes and sizes are looked at when compiling; the index itself is checked in eager mode.
        if not torch.compiler.is_compiling() and positions.numel() and (last := int(positions.max())) >= most:
            raise LimitError(
                f"position coordinates was built for {len(self.rows)} rows of {len(self.columns)} slots, got position "
                f"{last}; build it with a larger max_length"
            )
        row, column = self.places(positions)
        return x + torch.cat([self.rows[row], self.columns[column]], -1)
