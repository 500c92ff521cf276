"""Pictures of attention matrices, as PNG without any drawing library."""

import base64
import math
from collections.abc import Sequence

import numpy as np

from regard_lab.report.png import png as encoded

Matrix = Sequence[Sequence[float]]


def png(matrix: Matrix, *, scale: int = 4) -> bytes:
    """A picture: rows are queries, columns are keys, darker is more; negative weights are red.

    Each row is shown relative to its own largest weight, under a square root, so that a flat row is seen as flat and a
    peaked one as peaked.
    """
    pixels: list[list[tuple[int, int, int]]] = []
    for row in matrix:
        largest = max((abs(x) for x in row), default=0.0) or 1.0
        pixels.append([_colour(x / largest) for x in row])
    return encoded(np.array(pixels, np.uint8).repeat(scale, 0).repeat(scale, 1))


def _colour(share: float) -> tuple[int, int, int]:
    shade = 255 - round(255 * math.sqrt(min(abs(share), 1.0)))
    return (shade, shade, 255 - (255 - shade) // 3) if share >= 0 else (255, shade, shade)


def data_uri(matrix: Matrix) -> str:
    """The picture as the address of an image that needs no file."""
    return "data:image/png;base64," + base64.b64encode(png(matrix)).decode()
