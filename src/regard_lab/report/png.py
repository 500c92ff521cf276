"""Images as PNG files, one or a grid of them."""

import struct
import zlib

import numpy as np
from jaxtyping import UInt8

from regard.core.errors import ShapeError

GAP = 2
"""Pixels between the images of a grid."""


def tiled(
    images: UInt8[np.ndarray, "count height width channels"], columns: int, *, zoom: int = 1
) -> UInt8[np.ndarray, "rows width channels"]:
    """Images row by row, on white, each pixel as a square of zoom x zoom.

    Raises:
        ShapeError: images that are neither grey (1 channel) nor coloured (3), or none.

    Example:
        >>> tiled(np.zeros((3, 4, 5, 1), np.uint8), 2).shape
        (10, 12, 1)
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or not len(images):
        raise ShapeError(
            f"a picture shows bytes (count, height, width, 1 or 3), got {images.dtype} {tuple(images.shape)}"
        )
    images = images.repeat(zoom, 1).repeat(zoom, 2)
    count, height, width, channels = images.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, channels), 255, np.uint8)
    for at, image in enumerate(images):
        top, left = at // columns * (height + GAP), at % columns * (width + GAP)
        canvas[top : top + height, left : left + width] = image
    return canvas


def png(image: UInt8[np.ndarray, "height width channels"]) -> bytes:
    """A grey or coloured image as the bytes of a PNG file: 8 bits a channel, no filter, one IDAT.

    Example:
        >>> png(np.zeros((2, 3, 1), np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'

    Source: PNG, third edition (W3C 2025), sections 5.3, 11.2.1 and 11.2.3.
    """
    height, width, channels = image.shape
    colour = {1: 0, 3: 2}[channels]
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(lines.tobytes(), 9), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks.items())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
