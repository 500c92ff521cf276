"""Runs of a decoder with a memory: every window is trained and evaluated as segments of `max_length` tokens."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regard.core.errors import ConfigError
from regard.layer import AttentionLayer
from regard.models import LanguageModel, ModelConfig
from regard.models.generate import generate
from regard_lab.tasks import CopyConfig, ImagesConfig, TextConfig
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, toml, train

WINDOW, SEGMENT, KEPT = 32, 8, 64


@pytest.fixture
def remembering(tmp_path: Path) -> RunConfig:
    """Windows of four segments; a memory of the whole past, so that every layer sees what full context sees."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{at} is followed by {at + 1}\n" for at in range(60)))
    return RunConfig(
        ModelConfig(dim=16, heads=2, layers=2, memory=f"recent(length={KEPT})", max_length=SEGMENT),
        TextConfig(corpus=str(text), length=WINDOW, holdout=0.1, cache=str(tmp_path / "cache")),
        TrainingConfig(steps=6, batch_size=2, warmup=0, log_every=1, evaluate_every=3, checkpoint_every=2, threads=1),
    )


def changed(config: RunConfig, **model: object) -> RunConfig:
    return replace(config, model=replace(config.model, **model))


def like(model: nn.Module, **changes: object) -> LanguageModel:
    """The same weights under another configuration."""
    assert isinstance(model, LanguageModel)
    other = LanguageModel(replace(model.config, **changes))
    other.load_state_dict(model.state_dict())
    return other.eval()


def losses(config: RunConfig, run: Path) -> list[float]:
    return [line["loss"] for line in train(config, run).metrics if line["kind"] == "train"]


def test_a_window_is_trained_as_segments_with_the_memory_between(
    remembering: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of a call and hidden states remembered before it, for every layer of every training step."""
    seen: list[tuple[int, int]] = []
    forward = AttentionLayer.forward

    def watched(layer: AttentionLayer, x: torch.Tensor, *args: object, **given: object) -> object:
        memory = given["memory"]
        if layer.training:
            seen.append((x.shape[1], 0 if memory is None else memory["hidden"].shape[1]))
        return forward(layer, x, *args, **given)

    monkeypatch.setattr(AttentionLayer, "forward", watched)
    train(remembering, tmp_path / "run")
    step = [(SEGMENT, past) for past in range(0, WINDOW, SEGMENT) for _ in range(2)]
    assert seen == step * 6


def test_losses_and_scores_are_those_of_full_context(remembering: RunConfig, tmp_path: Path) -> None:
    """The first step's loss, and evaluation, against the same weights with everything in view; later steps differ,
    since no gradient reaches the memory."""
    full = changed(remembering, memory="none", max_length=WINDOW)
    ours, theirs = losses(remembering, tmp_path / "run"), losses(full, tmp_path / "full")
    alone = losses(changed(remembering, memory="recent(length=1)"), tmp_path / "short")
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert ours[1:] != pytest.approx(theirs[1:], rel=1e-6)
    assert alone[0] != pytest.approx(theirs[0], rel=1e-6)
    loaded = load(tmp_path / "run")
    report = evaluate(loaded)
    whole = evaluate(like(loaded.model, memory="none", max_length=WINDOW), remembering.task)
    forgetful = evaluate(like(loaded.model, memory="recent(length=1)"), remembering.task)
    assert report["nats_per_token"] == pytest.approx(whole["nats_per_token"], rel=1e-6)
    assert forgetful["nats_per_token"] != pytest.approx(whole["nats_per_token"], rel=1e-4)


def test_the_run_says_its_segment_and_generates_beyond_it(remembering: RunConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(remembering, run)
    loaded = load(run)
    for config in (result.config, toml.load(run / "config.toml"), loaded.config):
        assert (config.model.max_length, config.task.length) == (SEGMENT, WINDOW)
    assert isinstance(loaded.model, LanguageModel)
    assert (loaded.model.config.max_length, loaded.model.limit) == (SEGMENT, None)
    assert loaded.tokenizer is not None
    prompt, words = "12 is followed by", {"max_new_tokens": 30, "temperature": 0.0, "tokenizer": loaded.tokenizer}
    (wanted,) = generate(like(loaded.model, memory="none", max_length=2 * KEPT), [prompt], **words)
    assert loaded.generate(prompt, max_new_tokens=30, temperature=0.0) == wanted.text


@pytest.mark.parametrize("longest", [WINDOW, WINDOW + 1, 512])
def test_windows_of_one_segment_are_refused(remembering: RunConfig, tmp_path: Path, longest: int) -> None:
    """512 is the default: who asks for a memory alone is told what else it takes."""
    message = (
        f"model.memory='recent(length={KEPT})' would remember nothing: a segment has model.max_length={longest} "
        f"tokens, and no example to train on has more than {WINDOW}; set model.max_length below that (16 makes two"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(changed(remembering, max_length=longest), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_longest_segment_leaves_one_token_for_the_memory(remembering: RunConfig, tmp_path: Path) -> None:
    assert train(changed(remembering, max_length=WINDOW - 1), tmp_path / "run").config.model.max_length == WINDOW - 1


def test_other_tasks_and_their_segments(remembering: RunConfig, tmp_path: Path) -> None:
    """Copying across segments; and pixels, row by row."""
    copying = replace(remembering, task=CopyConfig(vocab_size=16, length=WINDOW, num_held_out=4, num_examples=20))
    assert train(copying, tmp_path / "copy").config.model.max_length == SEGMENT
    with pytest.raises(ConfigError, match=r"would remember nothing: .* more than 8; .*4 makes two segments"):
        train(replace(copying, task=replace(copying.task, length=SEGMENT)), tmp_path / "short")
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 8), np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    pixels = replace(remembering, task=ImagesConfig(data=str(tmp_path / "images.npz"), levels=16))
    assert train(pixels, tmp_path / "pixels").config.model.max_length == SEGMENT
    loaded = load(tmp_path / "pixels")
    drawn = loaded.draw(2, seed=1)
    assert drawn.shape == (2, 4, 8, 1)
    assert (loaded.draw(2, seed=1, use_state=False) == drawn).all()
