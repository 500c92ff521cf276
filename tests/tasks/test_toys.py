"""Toy images: always the same, told apart by their shape, and said to be toys."""

import hashlib

import numpy as np

from regard_lab.tasks import ClassificationConfig, ImagesConfig, SuperResolutionConfig, build_task
from regard_lab.tasks.toys import SHAPES, toy_images


def test_they_are_always_the_same_and_said_to_be_toys(caplog):
    train, test = toy_images()
    digest = hashlib.sha256(train.images.tobytes() + test.images.tobytes()).hexdigest()
    assert digest.startswith("6396b869eb85d038")
    assert "2,200 generated toy images of 16 x 16 pixels" in caplog.text
    assert "Your own: --task.data FILE" in caplog.text
    assert len({image.tobytes() for image in (*train.images, *test.images)}) == 2200


def test_the_light_pixels_are_the_shape_of_their_class():
    _, test = toy_images()
    inside = test.images >= 140
    assert (inside == (test.images > 59)).all()
    area = inside.sum((1, 2))
    heights, widths = inside.any(2).sum(1), inside.any(1).sum(1)
    filled = area / (heights * widths)
    means = {name: filled[test.labels == at].mean() for at, name in enumerate(SHAPES)}
    assert means["square"] == 1
    assert 0.7 < means["disc"] < 0.9  # pi / 4
    assert 0.4 < means["triangle"] < 0.65
    assert means["cross"] < means["disc"]
    hollow = [_hollow(image) for image in inside]
    assert set(test.labels[hollow]) == {SHAPES.index("ring")}


def _hollow(image: np.ndarray) -> bool:
    """Whether a row has dark pixels between light ones."""
    return any(np.ptp(row.nonzero()[0]) + 1 > row.sum() for row in image if row.any())


def test_every_task_on_images_reads_them():
    assert build_task(ImagesConfig(levels=4)).length == 256
    assert build_task(SuperResolutionConfig()).examples("valid")[0].source.shape == (16,)
    task = build_task(ClassificationConfig(data="shapes"))
    assert task.classes == SHAPES
    assert [len(task.examples(split)) for split in ("train", "valid", "test")] == [1800, 200, 200]
