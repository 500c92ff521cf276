"""The bytes of a PNG, read back by its specification."""

import struct
import zlib

import numpy as np
import pytest

from regard.core.errors import ShapeError
from regard_lab.report.png import GAP, png, tiled


def read(data: bytes) -> np.ndarray:
    """What a reader of PNG, third edition, makes of the file."""
    assert data[:8] == bytes([137, 80, 78, 71, 13, 10, 26, 10])
    chunks, at = [], 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + content),)
        chunks.append((kind, content))
        at += 12 + size
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3}[colour]
    lines = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + width * channels)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_image(channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    assert (read(png(image)) == image).all()


def test_images_lie_side_by_side_on_white() -> None:
    images = np.random.default_rng(0).integers(0, 255, (5, 3, 4, 3), np.uint8)
    whole = tiled(images, 3, zoom=2)
    assert whole.shape == (2 * 6 + GAP, 3 * 8 + 2 * GAP, 3)
    rest = np.ones(whole.shape[:2], bool)
    for at in range(5):
        top, left = at // 3 * (6 + GAP), at % 3 * (8 + GAP)
        for row in range(6):
            for column in range(8):
                assert (whole[top + row, left + column] == images[at, row // 2, column // 2]).all()
                rest[top + row, left + column] = False
    assert (whole[rest] == 255).all()


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ShapeError, match="1 or 3"):
        tiled(np.zeros((2, 4, 4, 2), np.uint8), 2)
    with pytest.raises(ShapeError, match="float64"):
        tiled(np.zeros((2, 4, 4, 1)), 2)
    with pytest.raises(ShapeError):
        tiled(np.zeros((0, 4, 4, 1), np.uint8), 2)
