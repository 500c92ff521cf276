"""Training on pixels: positive controls, half images, small images, other shapes, and runs that are continued."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import CheckpointError, ConfigError, ShapeError
from regard.models import EncoderDecoder, EncoderDecoderConfig, LanguageModel, ModelConfig
from regard_lab.tasks import ImagesConfig, SuperResolutionConfig, build_task
from regard_lab.tasks.pixels import reduced
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, train

TINY = {"dim": 16, "heads": 2, "layers": 1}
SHORT = TrainingConfig(steps=4, batch_size=4, warmup=1, evaluate_every=2, checkpoint_every=2, threads=1)


def coloured(path: Path, count: int = 40) -> str:
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 8, 3), np.uint8)
    np.savez(path, images=images)
    return str(path)


def plain(path: Path, count: int = 200) -> str:
    """Images of one of four colours, which is known after the first pixel: 2 bits an image, then nothing."""
    colours = np.array([[10, 200, 70], [240, 130, 5], [70, 70, 70], [130, 5, 250]], np.uint8)
    chosen = np.random.default_rng(1).integers(0, 4, count)
    np.savez(path, images=np.broadcast_to(colours[chosen][:, None, None], (count, 4, 4, 3)))
    return str(path)


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, RunConfig]:
    data = coloured(tmp_path / "coloured.npz")
    rectangle = ("image_local_2d(flange=(1, 2))",)
    images = ImagesConfig(data=data, levels=16, query_block=(2, 4), holdout=0.1)
    larger = SuperResolutionConfig(data=data, levels=16, query_block=(2, 4), holdout=0.1, factor=2)
    shape = {**TINY, "position": "coordinates", "attention": rectangle, "dropout": 0.1}
    return {
        "images": RunConfig(ModelConfig(**shape), images, SHORT),
        "super_resolution": RunConfig(EncoderDecoderConfig(**shape), larger, SHORT),
    }


def test_a_model_learns_what_there_is_to_learn(tmp_path: Path) -> None:
    """2 bits for 48 dimensions. Samples and completions are of one colour; greedy ones of the likeliest."""
    task = ImagesConfig(data=plain(tmp_path / "plain.npz"), levels=8, query_block=(2, 4))
    model = ModelConfig(dim=32, heads=4, layers=1, attention=("image_local_2d(flange=(2, 0))",))
    training = TrainingConfig(
        steps=120, batch_size=16, learning_rate=0.02, warmup=10, evaluate_every=120, checkpoint_every=120, threads=1
    )
    run = train(RunConfig(model, task, training), tmp_path / "run")
    bits = run.evaluation["bits_per_dimension"]
    assert isinstance(bits, float)
    assert 1.9 / 48 < bits < 2.6 / 48  # the validation has ten images, not quite evenly distributed
    report = evaluate(run.path, split="test")
    assert report["bits_per_byte"] is None
    rows = report["metrics"]
    assert rows["model"]["bits_per_dimension"] == report["bits_per_dimension"]  # type: ignore[index]
    others = [row["bits_per_dimension"] for name, row in rows.items() if name != "model"]  # type: ignore[union-attr]
    assert all(other > 0.1 for other in others)
    loaded = load(run.path)
    drawn = loaded.draw(20, seed=1)
    assert (drawn == drawn[:, :1, :1]).all((1, 2, 3)).sum() >= 19
    assert len(np.unique(drawn[:, 0, 0], axis=0)) >= 3
    assert loaded.grid is not None
    images = build_task(loaded.config.task).examples("valid").images
    shown = loaded.grid.images(loaded.grid.sequences(images))
    assert (loaded.draw(upper=images[:, :2], temperature=0.0) == shown).all()


def test_a_model_uses_the_small_image(tmp_path: Path) -> None:
    """Every square of 2 x 2 is one of two greys; the small image says which, and nothing else does."""
    squares = np.random.default_rng(2).integers(0, 2, (300, 2, 3, 1), np.uint8) * 128 + 60
    np.savez(tmp_path / "squares.npz", images=squares.repeat(2, 1).repeat(2, 2))
    task = SuperResolutionConfig(data=str(tmp_path / "squares.npz"), levels=2, factor=2)
    model = EncoderDecoderConfig(
        dim=32, heads=2, layers=1, position="coordinates", attention=("image_local_1d(block_size=6)",)
    )
    training = TrainingConfig(
        steps=240, batch_size=16, learning_rate=0.01, warmup=10, evaluate_every=240, checkpoint_every=240, threads=1
    )
    run = train(RunConfig(model, task, training), tmp_path / "run")
    assert run.evaluation["bits_per_dimension"] < 0.02  # type: ignore[operator]
    loaded = load(run.path)
    images = build_task(loaded.config.task).examples("test").images
    assert loaded.grid is not None
    wanted = loaded.grid.images(loaded.grid.sequences(images))
    assert (loaded.draw(small=reduced(images, 2), temperature=0.0) == wanted).all()


@pytest.mark.parametrize("name", ["images", "super_resolution"])
def test_a_run_is_what_the_images_are(runs: dict[str, RunConfig], tmp_path: Path, name: str) -> None:
    run = train(runs[name], tmp_path / "run")
    spec = "image_local_2d(flange=(1, 2), width=8, channels=3, query_block=(2, 4))"
    model = run.config.model
    assert (model.attention, model.vocab_size, model.targets, model.tied) == ((spec,), 49, 16, False)  # type: ignore[union-attr]
    assert model.position == "coordinates(width=8, channels=3, query_block=(2, 4))"
    if isinstance(model, EncoderDecoderConfig):
        assert model.encoder.position == "coordinates(width=4, channels=3, query_block=None)"
    loaded = load(run.path)
    assert type(loaded.model) is (LanguageModel if name == "images" else EncoderDecoder)
    assert loaded.grid is not None
    assert (loaded.grid.height, loaded.grid.width, loaded.grid.channels) == (4, 8, 3)
    report = evaluate(run.path)
    assert report["bits_per_dimension"] == report["nats_per_token"] / math.log(2)  # type: ignore[operator]
    small = None
    if name == "super_resolution":
        small = reduced(build_task(loaded.config.task).examples("valid").images[:2], 2)
    drawn = loaded.draw(2, small=small, seed=3)
    assert drawn.shape == (2, 4, 8, 3)
    assert (drawn == loaded.draw(2, small=small, seed=3, use_state=False)).all()
    assert (drawn[:1] == loaded.draw(1, small=None if small is None else small[:1], seed=3)).all()
    assert set(np.unique(drawn)) <= {16 * level + 8 for level in range(16)}


def test_the_default_models_are_local(runs: dict[str, RunConfig]) -> None:
    found = {name: RunConfig(task=config.task).model for name, config in runs.items()}
    assert [type(model) for model in found.values()] == [ModelConfig, EncoderDecoderConfig]
    assert {(model.position, model.attention) for model in found.values()} == {("coordinates", ("image_local_1d",))}
    assert found["super_resolution"].encoder_attention == ("softmax",)  # type: ignore[union-attr]


def test_drawing_what_does_not_fit_is_refused(runs: dict[str, RunConfig], tmp_path: Path) -> None:
    loaded = load(train(runs["images"], tmp_path / "images").path)
    larger = load(train(runs["super_resolution"], tmp_path / "larger").path)
    images = build_task(loaded.config.task).examples("valid").images
    with pytest.raises(ConfigError, match="trained on images, which reads small images: none"):
        loaded.draw(small=reduced(images, 2))
    with pytest.raises(ConfigError, match="trained on super_resolution, which reads small images: them; give small="):
        larger.draw(2)
    with pytest.raises(ShapeError, match=r"images must be bytes \(batch, 2, 4, 3\)"):
        larger.draw(small=images)
    with pytest.raises(ShapeError, match=r"as many images must be drawn as are given"):
        loaded.draw(len(images) + 1, upper=images[:, :2])
    with pytest.raises(ShapeError, match="at least 1"):
        loaded.draw(0)
    with pytest.raises(ConfigError, match="upper 1 rows are not generated before"):
        loaded.draw(upper=images[:, :1])
    with pytest.raises(ShapeError, match=r"images must be bytes \(batch, 4, 8, 3\)"):
        loaded.draw(upper=images[:, :2, :4])
    with pytest.raises(ConfigError, match=r"so it cannot continue text; use `\.draw`"):
        loaded.generate("x")
    (tmp_path / "images" / "images.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"images\.json is damaged"):
        load(tmp_path / "images")
    (tmp_path / "images" / "images.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*images\.json"):
        load(tmp_path / "images")


def test_mechanisms_that_do_not_fit_the_images_are_refused(runs: dict[str, RunConfig], tmp_path: Path) -> None:
    config = runs["images"]
    raster = replace(config, task=replace(config.task, query_block=None))
    with pytest.raises(ConfigError, match="the pixels come in raster order"):
        train(raster, tmp_path / "run")
    other = replace(config, model=replace(config.model, attention=("image_local_2d(query_block=(4, 4))",)))
    with pytest.raises(ConfigError, match=r"has query_block=\(4, 4\), and the task's images have"):
        train(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()
