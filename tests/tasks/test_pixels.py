"""Images as sequences: the order by loops written from the paper, levels, splits, sources, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard import Heads, build
from regard.core.errors import ConfigError, DataError, ShapeError
from regard_lab.tasks import ImagesConfig, ImagesTask, SuperResolutionConfig, SuperResolutionTask, build_task
from regard_lab.tasks.pixels import Grid, reduced, sources, without_shape
from regard_lab.tasks.scoring import image_rows


def drawn(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def places(height: int, width: int, channels: int, block: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Row, column and channel in the order of generation, by loops."""
    found = []
    for top in range(0, height, block[0]):
        for left in range(0, width, block[1]):
            for row in range(top, top + block[0]):
                for column in range(left, left + block[1]):
                    found += [(row, column, channel) for channel in range(channels)]
    return found


@pytest.mark.parametrize(
    ("shape", "block"), [((6, 8, 3), (2, 4)), ((6, 8, 1), (3, 8)), ((4, 4, 2), (1, 1)), ((4, 4, 1), None)]
)
@pytest.mark.parametrize("levels", [256, 16, 7])
def test_sequences_follow_the_order_of_generation(
    shape: tuple[int, int, int], block: tuple[int, int] | None, levels: int
) -> None:
    grid, images = Grid(*shape, levels, block), drawn(3, *shape)
    wanted = places(*shape, block or (1, shape[1]))
    sequences = grid.sequences(images)
    for image, sequence in zip(images, sequences, strict=True):
        assert sequence.tolist() == [int(image[at]) * levels // 256 for at in wanted]
    assert (grid.offsets == [channel * levels for _, _, channel in wanted]).all()
    assert (grid.start, grid.tokens, grid.length) == (shape[2] * levels, shape[2] * levels + 1, len(wanted))
    back = grid.images(sequences)
    assert back.shape == images.shape
    assert (grid.sequences(back) == sequences).all()
    width = 256 / levels
    assert np.abs(back.astype(float) - images).max() <= width / 2 + 1
    if levels == 256:
        assert (back == images).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_order_is_that_of_the_mechanism(channels: int) -> None:
    heads = Heads(count=1, key_dim=4, causal=True)
    mechanism = build(f"image_local_2d(width=8, channels={channels}, query_block=(2, 4), flange=(1, 1))", heads)
    assert (mechanism.order(height=6).numpy() == Grid(6, 8, channels, query_block=(2, 4)).order).all()  # type: ignore[operator]


def test_a_specification_takes_the_shape_of_the_images() -> None:
    grid = Grid(6, 8, 3, query_block=(2, 4))
    assert grid.placed("local(window=3)") == "local(window=3)"
    whole = "image_local_2d(flange=(1, 1), width=8, channels=3, query_block=(2, 4))"
    assert grid.placed("image_local_2d(flange=(1, 1))") == whole
    assert grid.placed("image_local_2d(flange=(1, 1), width=8)").count("width=8") == 1
    assert grid.placed("image_local_2d(flange=(1, 1)):2 + linear:1") == f"{whole}:2 + linear:1"
    assert grid.placed("regard.attention.sparse.local:Local") == "regard.attention.sparse.local:Local"
    path = "regard.attention.sparse.image_local_2d:ImageLocal2d"
    assert grid.placed(f"{path}(flange=(1, 1))") == whole.replace("image_local_2d", path)
    with pytest.raises(ConfigError, match=r"has width=9, and the task's images have width=8, channels=3"):
        grid.placed("image_local_2d(width=9)")
    with pytest.raises(ConfigError, match=r"pixels come in raster order.*--task.query-block"):
        Grid(6, 8).placed("image_local_2d")


def test_a_position_scheme_takes_the_shape_of_the_images() -> None:
    grid = Grid(6, 8, 3, query_block=(2, 4))
    whole = "coordinates(std=0.1, width=8, channels=3, query_block=(2, 4))"
    assert grid.located("coordinates(std=0.1)") == whole
    assert without_shape(whole) == "coordinates(std=0.1)"
    assert {grid.located(name) for name in ("none", "rotary")} == {"none", "rotary"}
    assert {without_shape(name) for name in ("none", "rotary(fraction=0.5)")} == {"none", "rotary(fraction=0.5)"}
    with pytest.raises(ConfigError, match=r"has width=9, and the task's images have width=8, channels=3"):
        grid.located("coordinates(width=9)")


def test_upper_rows_are_a_prefix_or_refused() -> None:
    grid = Grid(8, 8, 3, query_block=(4, 2))
    assert grid.upper(4) == 4 * 8 * 3
    assert sorted(grid.order[: grid.upper(4)]) == list(range(4 * 8 * 3))
    assert Grid(8, 8).upper(3) == 24
    with pytest.raises(ConfigError, match="upper 3 rows are not generated before the others: blocks are 4 rows high"):
        grid.upper(3)


def file(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_examples_predict_every_channel_from_those_before(tmp_path: Path) -> None:
    images = drawn(40, 4, 6, 3)
    task = build_task(ImagesConfig(data=file(tmp_path / "a.npz", images=images), levels=64, query_block=(2, 3)))
    assert isinstance(task, ImagesTask)
    assert (task.vocab_size, task.num_targets, task.length, task.metric) == (193, 64, 72, "bits_per_dimension")
    examples = task.examples("train")
    for index in (0, 5):
        inputs, targets = examples[index].inputs, examples[index].targets
        assert examples[index].source is None
        assert inputs[0] == 192
        wanted = places(4, 6, 3, (2, 3))
        levels = [int(examples.images[index][at]) // 4 for at in wanted]
        assert targets.tolist() == levels
        assert inputs[1:].tolist() == [level + 64 * at[2] for level, at in zip(levels, wanted, strict=True)][:-1]


def test_no_image_is_in_two_splits_and_none_is_lost(tmp_path: Path) -> None:
    images = drawn(41, 2, 2)
    alone = ImagesTask(ImagesConfig(data=file(tmp_path / "a.npz", images=images), holdout=0.1))
    parts = {split: alone.examples(split).images for split in ("train", "valid", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"train": 33, "valid": 4, "test": 4}
    together = np.concatenate(list(parts.values())).reshape(41, -1)
    assert sorted(map(bytes, together)) == sorted(map(bytes, images.reshape(41, -1)))
    both = ImagesTask(ImagesConfig(data=file(tmp_path / "b.npz", train_images=images, test_images=images[:3])))
    assert [len(both.examples(split)) for split in ("train", "valid", "test")] == [39, 2, 3]
    assert (both.examples("test").images[..., 0] == images[:3]).all()


def test_the_fingerprint_changes_with_what_the_examples_are(tmp_path: Path) -> None:
    data = file(tmp_path / "a.npz", images=drawn(9, 4, 4))
    other = file(tmp_path / "b.npz", images=drawn(9, 4, 4, seed=1))
    configs = [
        ImagesConfig(data=data),
        ImagesConfig(data=other),
        ImagesConfig(data=data, levels=16),
        ImagesConfig(data=data, query_block=(2, 2)),
        ImagesConfig(data=data, holdout=0.3),
        SuperResolutionConfig(data=data, factor=2),
    ]
    assert len({build_task(config).fingerprint for config in configs}) == len(configs)
    assert build_task(configs[0]).fingerprint == build_task(ImagesConfig(data=data)).fingerprint


@pytest.mark.parametrize("channels", [1, 3])
def test_a_source_is_the_mean_of_squares(tmp_path: Path, channels: int) -> None:
    images = drawn(20, 4, 8, channels)
    small = reduced(images, 2)
    for row in range(2):
        for column in range(4):
            square = images[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].astype(float).mean((1, 2))
            assert np.abs(small[:, row, column] - square).max() <= 0.5
    config = SuperResolutionConfig(data=file(tmp_path / "a.npz", images=images), factor=2, levels=32)
    task = build_task(config)
    assert isinstance(task, SuperResolutionTask)
    examples = task.examples("valid")
    source = examples[0].source
    assert source is not None
    wanted = [
        int(reduced(examples.images[:1], 2)[0, row, column, channel]) // 8 + 32 * channel
        for row, column, channel in places(2, 4, channels, (1, 4))
    ]
    assert source.tolist() == wanted
    assert (sources(reduced(examples.images, 2), Grid(2, 4, channels, 32))[0] == source).all()


def test_bits_per_dimension_of_counts(tmp_path: Path) -> None:
    """Against loops over every pixel."""
    images = drawn(30, 2, 3, 2) // 64 * 64  # four values
    task = ImagesTask(ImagesConfig(data=file(tmp_path / "a.npz", images=images), levels=4, query_block=(2, 1)))
    training, own = task.examples("train").images // 64, task.examples("valid").images // 64
    chosen = list(range(len(own)))
    bits = {"place": 0.0, "before": 0.0}
    for image in own:
        for row in range(2):
            for column in range(3):
                for channel in range(2):
                    level = image[row, column, channel]
                    same = training[:, row, column, channel]
                    bits["place"] -= np.log2(((same == level).sum() + 0.5) / (len(training) + 2))
                    at = 3 * row + column
                    flat = training.reshape(len(training), 6, 2)[..., channel]
                    if at == 0:
                        after = flat[:, 0]
                    else:
                        before = image.reshape(6, 2)[at - 1, channel]
                        after = flat[:, 1:][flat[:, :-1] == before]
                    bits["before"] -= np.log2(((after == level).sum() + 0.5) / (len(after) + 2))
    rows = image_rows(np.log(2) * 1.5, task, "valid", chosen)
    assert rows["model"]["bits_per_dimension"] == pytest.approx(1.5, abs=1e-12)
    found = [rows[name]["bits_per_dimension"] for name in ("levels in each place", "levels after the pixel before")]
    assert found == pytest.approx([bits["place"] / own.size, bits["before"] / own.size], abs=1e-10)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": drawn(3, 2)}, "has no train_images, test_images; it holds labels"),
        ({"images": np.zeros((3, 4, 4))}, "images must be bytes"),
        ({"images": drawn(2, 4, 4)}, "2 images cannot be split"),
        ({"train_images": drawn(4, 2, 2), "test_images": drawn(4, 3, 2)}, r"training images are \(2, 2, 1\), test"),
    ],
)
def test_data_that_is_wrong_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_task(ImagesConfig(data=file(tmp_path / "a.npz", **arrays)))


def test_a_file_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*b\.npz; give a local file"):
        build_task(ImagesConfig(data=str(tmp_path / "b.npz")))
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(DataError, match=r"c\.npz is damaged"):
        build_task(ImagesConfig(data=str(tmp_path / "c.npz")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda data: ImagesConfig(data=data, levels=1), "levels=1 is not possible"),
        (lambda data: ImagesConfig(data=data, levels=257), "levels=257 is not possible"),
        (lambda data: ImagesConfig(data=data, query_block=(0, 2)), r"query_block=\(0, 2\) is not possible"),
        (lambda data: ImagesConfig(data=data, query_block=(3, 2)), r"query_block=\(3, 2\) must divide the sides"),
        (lambda data: ImagesConfig(data=data, holdout=0.5), "holdout=0.5 is not possible"),
        (lambda data: SuperResolutionConfig(data=data, factor=1), "factor=1 is not possible"),
        (lambda data: SuperResolutionConfig(data=data, factor=3), "factor=3 must divide the sides"),
    ],
)
def test_options_that_are_wrong_are_named(tmp_path: Path, config, message: str) -> None:
    data = file(tmp_path / "a.npz", images=drawn(9, 4, 4))
    with pytest.raises(ConfigError, match=message):
        build_task(config(data))


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"images must be bytes \(batch, 4, 4, 1\)"):
        Grid(4, 4).sequences(drawn(2, 4, 5, 1))
    with pytest.raises(ShapeError, match="images must be bytes"):
        Grid(4, 4).sequences(torch.zeros(2, 4, 4, 1).numpy())
