"""Pictures of attention matrices, as PNG without any drawing library."""

import base64
import math
from collections.abc import Sequence

import numpy as np

from regard_lab.report.png import png as encoded

Matrix = Sequence[Sequence[float]]


def png(matrix: Matrix, *, scale: int = 4, relative_to: Matrix | None = None) -> bytes:
    """A picture: rows are queries, columns are keys, darker is more; negative weights are red.

    Each row is shown relative to its own largest weight, or to that of the same row of `relative_to`, under a square
    root, so that a flat row is seen as flat and a peaked one as peaked.
    """
    pixels: list[list[tuple[int, int, int]]] = []
    for row, compared in zip(matrix, matrix if relative_to is None else relative_to, strict=True):
        largest = max((abs(x) for x in compared), default=0.0) or 1.0
        pixels.append([_colour(x / largest) for x in row])
    return encoded(np.array(pixels, np.uint8).repeat(scale, 0).repeat(scale, 1))


def _colour(share: float) -> tuple[int, int, int]:
    shade = 255 - round(255 * math.sqrt(min(abs(share), 1.0)))
    return (shade, shade, 255 - (255 - shade) // 3) if share >= 0 else (255, shade, shade)


def data_uri(matrix: Matrix, *, relative_to: Matrix | None = None) -> str:
    """The picture as the address of an image that needs no file."""
    return "data:image/png;base64," + base64.b64encode(png(matrix, relative_to=relative_to)).decode()


def describe(matrix: Matrix) -> dict[str, float]:
    """A picture in numbers, as means over the queries.

    effective_keys: exp of the entropy of the absolute weights. distance: from the query to the weighted mean of its
    keys. nearest_eight: share of the weight on the eight nearest keys.
    """
    keys, distance, near = 0.0, 0.0, 0.0
    for i, row in enumerate(matrix):
        total = sum(abs(x) for x in row) or 1.0
        weights = [abs(x) / total for x in row]
        keys += math.exp(-sum(w * math.log(w) for w in weights if w > 0))
        distance += sum(w * abs(i - j) for j, w in enumerate(weights))
        near += sum(w for j, w in enumerate(weights) if abs(i - j) < 8)
    count = max(len(matrix), 1)
    return {"effective_keys": keys / count, "distance": distance / count, "nearest_eight": near / count}
