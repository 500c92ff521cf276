"""Toy images: five shapes, generated, for trying out tasks on images without a file. They are no benchmark."""

import logging

import numpy as np
from jaxtyping import UInt8

from regard_lab.tasks.config import TOYS
from regard_lab.tasks.images import Images

SHAPES = ("disc", "square", "triangle", "cross", "ring")
"""classes of the images, in the order of their labels"""
_SIDE, _TRAIN, _TEST = 16, 2000, 200
_LOG = logging.getLogger("regard")


def toy_images() -> tuple[Images, Images]:
    """Training and test images, bytes (count, 16, 16), always the same: one light shape on a dark ground, anywhere.

    Example:
        >>> train, test = toy_images()
        >>> train.images.shape, test.images.shape, [SHAPES[label] for label in test.labels[:3]]
        ((2000, 16, 16), (200, 16, 16), ['disc', 'square', 'triangle'])
    """
    _LOG.warning(
        "%s: %s generated toy images of %d x %d pixels (%s), to try things out; figures on them say little. Your own: "
        "--task.data FILE",
        TOYS, f"{_TRAIN + _TEST:,}", _SIDE, _SIDE, ", ".join(SHAPES),
    )  # fmt: skip
    labels = np.arange(_TRAIN + _TEST) % len(SHAPES)
    images = _drawn(labels, np.random.default_rng(0))
    return Images(images[:_TRAIN], labels[:_TRAIN]), Images(images[_TRAIN:], labels[_TRAIN:])


def _drawn(labels: np.ndarray, draw: np.random.Generator) -> UInt8[np.ndarray, "count 16 16"]:
    # `random` alone: of a generator's methods it is the one whose numbers have never changed between versions
    radius, down, right, light, dark = draw.random((5, len(labels), 1, 1))
    radius = 3 + 2 * radius
    rows, columns = np.mgrid[:_SIDE, :_SIDE]
    y, x = (grid - (5 + 5 * at) for grid, at in ((rows, down), (columns, right)))
    distance = x * x + y * y  # squared: sums and products round alike everywhere
    disc = distance <= radius * radius
    shapes = (
        disc,
        np.maximum(abs(x), abs(y)) <= 0.8 * radius,
        (abs(y) <= radius) & (2 * abs(x) <= y + radius),
        (np.minimum(abs(x), abs(y)) <= radius / 3) & (np.maximum(abs(x), abs(y)) <= radius),
        disc & (distance >= (radius - 1.5) * (radius - 1.5)),
    )
    inside = np.choose(labels[:, None, None], shapes)
    return np.where(inside, 140 + 115 * light, 60 * dark).astype(np.uint8)
