"""Passages that are drawn to calibrate by, and where a calibration may be used."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.core.errors import CheckpointError, DataError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import build_depth
from regard_lab.benchmark.exits import drawn, exits_of, measure, require_items
from regard_lab.networks import exits
from regard_lab.retrieval.documents import fingerprint


def model_of(seed: int) -> LanguageModel:
    return LanguageModel(ModelConfig(dim=16, heads=2, layers=3, vocab_size=20, seed=seed)).eval()


def installed(model: LanguageModel, of: LanguageModel, threshold: float | None) -> None:
    """Put a calibration of one model into another, by way of a folder."""
    kept = {"format": 1, "heads": "own", "model": fingerprint(of), "calibrated": {"threshold": threshold}}
    with tempfile.TemporaryDirectory() as folder:
        exits.save(Path(folder) / "exits", kept, of.depth)
        exits.install(model, Path(folder) / "exits")


def test_drawn_parts_have_nothing_in_common() -> None:
    found = np.arange(60).reshape(20, 3)
    heads, items = drawn(found, 7, 12, seed=3)
    assert (len(heads), len(items)) == (7, 12)
    both = np.concatenate([heads, items])[:, 0].tolist()
    assert len(set(both)) == 19, "a passage was drawn twice"
    assert both != sorted(both)


def test_as_many_passages_as_are_needed_are_enough() -> None:
    require_items(59, risk=0.05, confidence=0.95, test="hoeffding_bentkus")
    with pytest.raises(DataError, match="that takes 59 passages"):
        require_items(58, risk=0.05, confidence=0.95, test="hoeffding_bentkus")


def test_one_block_has_no_exit() -> None:
    model = LanguageModel(ModelConfig(dim=16, heads=2, layers=1, depth="early_exit"))
    with pytest.raises(UnsupportedError, match="a model of one block has no exit before its last one"):
        measure(model, np.arange(12).reshape(2, 6), (0.5,))


def test_a_calibration_is_of_its_weights() -> None:
    installed(model_of(0), model_of(0), 0.5)
    with pytest.raises(CheckpointError, match="was calibrated for other weights than these"):
        installed(model_of(1), model_of(0), 0.5)


def test_without_a_threshold_no_token_leaves() -> None:
    model = model_of(0)
    installed(model, model_of(0), None)
    assert (model(torch.arange(8)[None]).steps == 3).all()


def test_thresholds_of_each_block_are_not_calibrated() -> None:
    model = model_of(0)
    model.depth = build_depth("early_exit(thresholds=(0.5, 0.4))", model.config)
    with pytest.raises(UnsupportedError, match="every block of this model has a threshold of its own"):
        exits_of(model)
