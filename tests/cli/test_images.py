"""train, evaluate and generate on pixels."""

import json
from pathlib import Path

import numpy as np
import pytest

from regard.cli.main import main
from regard.training import load, toml

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

    monkeypatch.setattr("regard.training.loaded.Loaded.draw", kept)
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
        (["--out", "grid.png", "--count", "0"], "--count must be at least 1, got 0"),
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


def test_data_that_is_not_there(regard):
    answer = regard("train", "--task", "images", "--task.data", "nowhere.npz")
    assert (answer.code, answer.out) == (3, "")
    assert "give a local file of images with --task.data" in answer.err
