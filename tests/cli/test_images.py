"""train, evaluate and generate on pixels."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from regard.cli.main import main
from regard_lab.training import load, toml

SHORT = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--batch-size", "4", "--warmup", "1"]
SHORT += ["--threads", "1", "--steps", "2", "--task.levels", "8", "--task.query-block", "2", "4"]
SHORT += ["--model.attention", "image_local_2d(flange=(1, 2))"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """A run of both kinds, made by the command. Never to be changed."""
    folder = tmp_path_factory.mktemp("made")
    draw = np.random.default_rng(0)
    np.savez(
        folder / "grey.npz",
        train_images=draw.integers(0, 256, (50, 4, 8), np.uint8),
        test_images=np.zeros((4, 4, 8), np.uint8),
    )
    np.savez(folder / "coloured.npz", images=draw.integers(0, 256, (60, 4, 8, 3), np.uint8))
    for task, data, own in (("images", "grey", []), ("super_resolution", "coloured", ["--task.factor", "2"])):
        words = ["train", "--task", task, "--task.data", str(folder / f"{data}.npz"), *SHORT, *own]
        assert main([*words, "--model.checkpoint", "block", "--out", str(folder / task)]) == 0
    return {name: folder / name for name in ("images", "super_resolution")}


def size(path: Path) -> tuple[int, int, int]:
    """Width, height and colour type."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24]), data[25]


@pytest.mark.parametrize("name", ["images", "super_resolution"])
def test_train_and_evaluate(regard, made, name):
    config = toml.load(made[name] / "config.toml")
    assert (config.task.query_block, config.task.levels, config.model.checkpoint) == ((2, 4), 8, "block")
    answer = regard("evaluate", made[name], "--limit", "2")
    assert answer.code == 0, answer.err
    assert all(word in answer.out for word in ("bits_per_dimension", "levels in each place", "levels after the pixel"))
    found = json.loads(regard("evaluate", made[name], "--split", "test", "--json").out)
    assert found["bits_per_byte"] is None
    assert found["metrics"]["model"]["bits_per_dimension"] == found["bits_per_dimension"]


def test_generate_writes_a_grid(regard, made, tmp_path):
    answer = regard("generate", made["images"], "--out", "grid.png", "--count", "5", "--seed", "2")
    assert (answer.code, answer.out) == (0, "grid.png\n")
    zoom = 112 // 4
    assert size(tmp_path / "grid.png") == (3 * 8 * zoom + 4, 2 * 4 * zoom + 2, 0)
    regard("generate", made["images"], "--out", "same.png", "--count", "5", "--seed", "2")
    regard("generate", made["images"], "--out", "other.png", "--count", "5", "--seed", "3")
    grid, same, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("grid", "same", "other"))
    assert grid == same
    assert grid != other


def test_generate_completes_held_out_images(regard, made, tmp_path, monkeypatch):
    seen = {}
    draw = type(load(made["images"])).draw

    def kept(self, count, **options):
        seen.update(options, count=count)
        return draw(self, count, **options)

    monkeypatch.setattr("regard_lab.training.trained_model.TrainedModel.draw", kept)
    answer = regard(
        "generate", made["images"], "--out", "half.png", "--complete", "--count", "2", "--temperature", "0.5"
    )
    assert answer.code == 0, answer.err
    assert (seen["count"], seen["upper"].shape, seen["temperature"]) == (2, (2, 2, 8, 1), 0.5)
    assert size(tmp_path / "half.png") == (2 * 8 * 28 + 2, 3 * 4 * 28 + 4, 0)
    answer = regard("generate", made["super_resolution"], "--out", "large.png", "--complete", "--count", "3")
    assert answer.code == 0, answer.err
    assert (seen["upper"].shape, seen["small"].shape) == ((3, 2, 8, 3), (3, 2, 4, 3))
    assert size(tmp_path / "large.png") == (3 * 8 * 28 + 4, 3 * 4 * 28 + 4, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "draws images: say where with --out grid.png"),
        (["--out", "grid.jpg"], "draws images: say where with --out grid.png"),
        (["a text", "--out", "grid.png"], "draws images and reads no text; leave 'a text' out"),
        (["--batch", "there.png", "--out", "grid.png"], "draws images and reads no text; leave 'there.png' out"),
        (["--out", "grid.png", "--count", "0"], "--count must be at least 1, got 0"),
        (["--out", "grid.png", "--complete", "--count", "999"], "--count is at most the "),
        (["--out", "grid.png", "--beam", "2"], "draws images: --beam has no use for it"),
        (["--out", "there.png"], "there.png exists; choose another name"),
    ],
)
def test_what_makes_no_sense_is_refused(regard, made, tmp_path, words, message):
    (tmp_path / "there.png").touch()
    answer = regard("generate", made["images"], *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "grid.png").exists()


def test_what_is_for_images_is_refused_elsewhere(regard, trained):
    for flag in (["--out", "a.png"], ["--complete"], ["--count", "3"]):
        answer = regard("generate", trained, "text", *flag)
        assert (answer.code, answer.out) == (2, "")
        assert f"continues text: {flag[0]} has no use for it" in answer.err
    answer = regard("generate", trained)
    assert (answer.code, answer.out) == (2, "")
    assert "reads text: give it after the run, or - for standard input" in answer.err


class _Runs:
    """A pickle of it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("task", ["images", "super_resolution", "classification"])
def test_pickles_are_never_loaded(regard, tmp_path, task):
    """As a file that only bears the name, as an object array within one, and an array that is no archive."""
    names = ("train_images", "train_labels", "test_images", "test_labels")
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(_Runs(tmp_path / "ran")))
    np.savez(tmp_path / "inside.npz", **dict.fromkeys(names, np.array([_Runs(tmp_path / "ran")], object)))
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros((4, 4, 4), np.uint8))
    for name, message in (("bare", "no .npz file"), ("inside", "allow_pickle=False"), ("array", "no .npz file")):
        answer = regard("train", "--task", task, "--task.data", str(tmp_path / f"{name}.npz"), "--out", "run")
        assert (answer.code, answer.out) == (3, "")
        assert message in answer.err
    assert not (tmp_path / "ran").exists()
    pickle.loads((tmp_path / "bare.npz").read_bytes())  # what the test guards against
    assert (tmp_path / "ran").exists()


def test_the_preset_in_two_dimensions_has_the_blocks_of_the_images(regard, tmp_path):
    np.savez(tmp_path / "grey.npz", images=np.random.default_rng(0).integers(0, 256, (20, 6, 8), np.uint8))
    shape = "height=6, width=8, channels=1, local='2d', dim=8, layers=1, heads=2"
    words = ["train", "--task", "images", "--task.data", "grey.npz", "--task.query-block", "3", "4", "--steps", "1"]
    words += ["--batch-size", "2", "--warmup", "0", "--threads", "1", "--out", "run", "--task.holdout", "0.2"]
    answer = regard(*words, "--preset", f"image_transformer({shape})")
    assert (answer.code, answer.out) == (2, "")
    assert "give a preset those of the images" in answer.err
    answer = regard(*words, "--preset", f"image_transformer({shape}, query_block=(3, 4))")
    assert answer.code == 0, answer.err
    assert "flange=(3, 4)" in (tmp_path / "run" / "config.toml").read_text()
