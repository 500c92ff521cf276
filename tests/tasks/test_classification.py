import gzip
import lzma
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

import regard_lab.tasks
from regard.core.errors import ConfigError, DataError
from regard.models.encoder import patches
from regard_lab.tasks import ClassificationConfig, build_task, has_text
from regard_lab.tasks.classification import ERAS

CORPORA = Path(regard_lab.tasks.__file__).parent / "corpora"
SPLITS = ("train", "valid", "test")


def rows(name: str) -> list[list[str]]:
    with lzma.open(CORPORA / f"{name}.tsv.xz", "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n").split("\t") for line in file]


def texts(task, split) -> dict[str, str]:
    """Every document that the examples of a split hold, put together again -> its class."""
    found: dict[int, list[bytes]] = {}
    label: dict[int, int] = {}
    for example in task.examples(split):
        assert example.inputs[0] == 0
        assert example.targets.shape == (1,)
        assert len(example.inputs) <= task.length
        found.setdefault(example.document, []).append(task.tokenizer.to_bytes(example.inputs[1:]))
        label[example.document] = int(example.targets[0])
    return {b"".join(parts).decode(): task.classes[label[document]] for document, parts in found.items()}


def test_no_president_is_in_two_splits_and_every_era_is_in_all():
    task = build_task(ClassificationConfig(length=1024))
    year_of = {text: int(year) for year, _, text in rows("state_of_the_union")}
    president = {text: name for _, name, text in rows("state_of_the_union")}
    presidents = []
    for split in SPLITS:
        found = texts(task, split)
        assert set(found.values()) == {name for name, _ in ERAS}
        for text, era in found.items():
            year = year_of[text]
            assert era == ("1790 to 1860" if year <= 1860 else "1861 to 1932" if year <= 1932 else "since 1933")
        presidents.append({president[text] for text in found})
    assert not presidents[0] & presidents[1] | presidents[0] & presidents[2] | presidents[1] & presidents[2]
    assert len(set.union(*presidents)) == len(set(president.values()))


def test_no_poet_and_no_poem_is_in_two_splits():
    task = build_task(ClassificationConfig(data="song_ci", num_classes=4, length=128))
    assert task.classes == ("浣溪沙", "水调歌头", "鹧鸪天", "菩萨蛮")
    authors, poems, credited = [], [], defaultdict(set)
    for tune, author, text in rows("song_ci"):
        if tune in task.classes:
            credited[text].add(author)
    for split in SPLITS:
        found = texts(task, split)
        assert set(found.values()) == set(task.classes)
        poems.append(set(found))
        authors.append([credited[text] for text in found])
    assert not poems[0] & poems[1] | poems[0] & poems[2] | poems[1] & poems[2]
    only = [{next(iter(one)) for one in found if len(one) == 1} for found in authors]
    assert not only[0] & only[1] | only[0] & only[2] | only[1] & only[2]


def draw_images(count: int, *shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 3


@pytest.fixture
def npz(tmp_path) -> Path:
    images, labels = draw_images(40, 8, 12)
    test_images, test_labels = draw_images(9, 8, 12, seed=1)
    path = tmp_path / "small.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=test_images, test_labels=test_labels)
    return path


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())


def test_an_image_is_its_patches_standardised(npz):
    config = ClassificationConfig(data=str(npz), patch=4, holdout=0.25)
    task = build_task(config)
    assert not has_text(config)
    assert (task.vocab_size, task.input_dim, task.length, task.classes) == (0, 16, 6, ("0", "1", "2"))
    assert [len(task.examples(split)) for split in SPLITS] == [30, 10, 9]
    train = task.examples("train")
    wanted = patches(torch.from_numpy(train.images[7]).float()[None, None], 4)[0]
    pixels = train.images.astype(np.float64)
    wanted = (wanted.double() - pixels.mean()) / pixels.std()
    # float32, values below 3
    torch.testing.assert_close(torch.from_numpy(train[7].inputs).double(), wanted, rtol=0, atol=2e-6)
    assert train[7].targets.tolist() == [train.labels[7]]


def test_colours_and_idx_files(tmp_path):
    images, labels = draw_images(12, 4, 4, 3)
    np.savez(tmp_path / "c.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    task = build_task(ClassificationConfig(data=str(tmp_path / "c.npz"), patch=2, holdout=0))
    train = task.examples("train")
    assert len(train) == 12
    assert len(task.examples("valid")) == 12
    wanted = patches(torch.from_numpy(train.images[3]).permute(2, 0, 1).float()[None], 2)[0]
    wanted = (wanted - task.examples("train").mean) / task.examples("train").deviation
    torch.testing.assert_close(torch.from_numpy(train[3].inputs), wanted, rtol=0, atol=2e-6)

    grey, labels = draw_images(20, 4, 4)
    for name, array in {"train-images-idx3": grey, "train-labels-idx1": labels, "t10k-images-idx3": grey}.items():
        (tmp_path / f"{name}-ubyte.gz").write_bytes(idx(array))
    config = ClassificationConfig(data=str(tmp_path / "t10k-images-idx3-ubyte.gz"), patch=2)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        build_task(config)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    assert (build_task(config).examples("test").images == grey).all()


def test_bad_images_are_refused(npz, tmp_path):
    def build(path: Path, **options):
        return build_task(ClassificationConfig(data=str(path), **options))

    with pytest.raises(ConfigError, match="patch=5 must divide"):
        build(npz, patch=5)
    with pytest.raises(DataError, match="no such file, and no bundled corpus"):
        build(tmp_path / "none.npz")
    (tmp_path / "cut.npz").write_bytes(npz.read_bytes()[:-50])
    with pytest.raises(DataError, match="is damaged"):
        build(tmp_path / "cut.npz")
    np.savez(tmp_path / "object.npz", **dict.fromkeys(("train_images", "train_labels", "test_images", "test_labels"),
                                                      np.array([{}], object)))  # fmt: skip
    with pytest.raises(DataError, match=r"damaged, or no file of images.*allow_pickle"):
        build(tmp_path / "object.npz")
    np.savez(tmp_path / "half.npz", train_images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match="has no train_labels, test_images, test_labels"):
        build(tmp_path / "half.npz")
    grey, labels = draw_images(6, 4, 4)
    for wrong, message in (
        ({"train_images": grey.astype(np.float32)}, r"must be bytes \(count, height, width\)"),
        ({"test_images": grey.reshape(6, 16)}, "test_images must be bytes"),
        ({"train_labels": labels[:3]}, "train_labels must be 6 classes from 0 on"),
        ({"test_labels": labels - 1}, "must be"),
        ({"train_labels": labels * 0, "test_labels": labels * 0}, "are of one class"),
        ({"test_labels": labels * 0 + 7}, "the test images have class 7"),
        ({"test_images": grey[:, :, :2]}, r"training images are \(4, 4\), test images \(4, 2\)"),
    ):
        arrays = {"train_images": grey, "train_labels": labels, "test_images": grey, "test_labels": labels}
        np.savez(tmp_path / "wrong.npz", **{**arrays, **wrong})
        with pytest.raises(DataError, match=message):
            build(tmp_path / "wrong.npz", patch=2)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(idx(grey)[:-9])
    with pytest.raises(DataError, match="is damaged"):
        build(tmp_path / "train-images-idx3-ubyte.gz")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\0\0\0\x09" * 3 + b"x"))
    with pytest.raises(DataError, match=r"says that it holds \(9, 9, 9\)"):
        build(tmp_path / "train-images-idx3-ubyte.gz")
    (tmp_path / "picture.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"from \.npz and -ubyte\.gz"):
        build(tmp_path / "picture.png")
    with pytest.raises(ConfigError, match="holdout=0 is for images"):
        build_task(ClassificationConfig(holdout=0))
    with pytest.raises(ConfigError, match="tunes, got num_classes=5000"):
        build_task(ClassificationConfig(data="song_ci", num_classes=5000))


def test_the_separator_is_global_and_sentences_have_tokens_in_front():
    plain = build_task(ClassificationConfig(data="song_ci", num_classes=2, length=64))
    task = build_task(ClassificationConfig(data="song_ci", num_classes=2, length=64, summaries=3))
    assert (plain.vocab_size, plain.length, task.vocab_size, task.length) == (256, 64, 257, 67)
    assert plain.fingerprint != task.fingerprint
    assert len(plain.examples("valid")) == len(task.examples("valid"))
    seen = set()
    for index in range(20):
        one, other = plain.examples("valid")[index], task.examples("valid")[index]
        assert one.marks.tolist() == [-1] + [0] * (len(one.inputs) - 1)
        count = int((other.inputs == 256).sum())
        seen.add(count)
        assert other.marks[: count + 1].tolist() == [-4, *(-1 - at for at in range(count))]
        assert set(other.marks[count + 1 :].tolist()) == set(range(1, count + 1))
        assert np.delete(other.inputs, range(1, count + 1)).tolist() == one.inputs.tolist()
        assert plain.examples("valid").text(index) == plain.tokenizer.decode(one.inputs[1:])
    assert seen <= {1, 2, 3}
    assert max(seen) == 3
    with pytest.raises(ConfigError, match=r"summaries=2 is not possible; it must be 0 for images"):
        ClassificationConfig(data="pictures.npz", summaries=2)
