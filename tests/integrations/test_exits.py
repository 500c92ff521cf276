"""Exits that are kept in a folder: what a model does that is given them, certified or not."""

import numpy as np
import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth.light_exit import LightExit
from regard.testing.compare import assert_identical
from regard.testing.inputs import randn
from regard_lab.benchmark.exits import leaving_at, measure
from regard_lab.calibration import calibrate
from regard_lab.networks.exits import document, install, own_exits, put, save
from regard_lab.retrieval.documents import fingerprint

ITEMS = np.arange(60 * 6).reshape(60, 6) * 7 % 20
TOKENS = torch.from_numpy(ITEMS[:4, :-1])


def blocks_taken(model: LanguageModel, tokens: torch.Tensor) -> list[list[int]]:
    """For each passage (items, length), how many blocks each token took before the next one was said."""
    return model.hidden(tokens).steps.tolist()


def model_of(depth: str = "fixed") -> LanguageModel:
    model = LanguageModel(ModelConfig(dim=8, heads=2, layers=3, vocab_size=20, depth=depth))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.eval()


def kept(folder, heads: str, risk: float) -> float | None:
    """The threshold of a calibration at this risk, kept in a folder."""
    model = model_of()
    before = fingerprint(model)
    if heads == "own":
        put(model, own_exits(model))
    else:
        light = LightExit(model.config)
        with torch.no_grad():
            for name, weight in light.named_parameters():
                weight.add_(0.5 * randn(*weight.shape, seed=name))
        put(model, light.eval())
    measured = measure(model, ITEMS, (0.01,))
    found = calibrate(measured.losses, (0.01,), risk=risk)
    assert measured.losses.mean() > 0.1, "exits lose nothing, so that nothing is tested"
    described = document(found, measured, heads=heads, loss="disagreement", promise="", origin={"model": before})
    save(folder, described, model.depth)
    return found.threshold


@pytest.mark.parametrize("heads", ["own", "light"])
@pytest.mark.parametrize(("risk", "threshold"), [(0.999, 0.01), (0.06, None)])
def test_only_a_certified_threshold_lets_tokens_leave(tmp_path, heads, risk, threshold):
    """At a risk that no threshold keeps to, the model is the full one, bit for bit."""
    assert kept(tmp_path / "exits", heads, risk) == threshold
    model, full = model_of(), model_of()
    found = install(model, tmp_path / "exits")
    assert found["heads"] == heads
    steps = blocks_taken(model, TOKENS)
    if threshold is None:
        assert found["calibrated"]["threshold"] is None
        assert steps == [[3] * 5] * 4
        assert_identical(model(TOKENS).logits, full(TOKENS).logits, what="logits")
    else:
        assert min(min(row) for row in steps) == 1
        assert [row[0] for row in steps] == [3] * 4, "the first token of a text takes every block"


def test_the_first_token_stays_for_exits_of_ones_own():
    model = model_of()
    put(model, own_exits(model))
    with leaving_at(model, 0.0):
        assert blocks_taken(model, TOKENS) == [[3, 1, 1, 1, 1]] * 4
    assert blocks_taken(model, TOKENS) == [[3] * 5] * 4


def test_what_cannot_be_given_exits_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="blocks that run once, in order"):
        own_exits(model_of("universal(steps=2)"))
    kept(tmp_path / "exits", "own", 0.999)
    other = model_of()
    with torch.no_grad():
        other.table.weight[0, 0] += 1
    with pytest.raises(CheckpointError, match="calibrated for other weights"):
        install(other, tmp_path / "exits")
    with pytest.raises(ConfigError, match="there is no calibration"):
        install(model_of(), tmp_path / "nowhere")
