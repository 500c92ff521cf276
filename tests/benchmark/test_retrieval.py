"""Trained recall: what is trained, what is reported, and controls that can miss."""

import pytest
import torch

from regard import catalog
from regard.core.errors import ConfigError, UnsupportedError
from regard.models import LanguageModel, stack
from regard_lab.benchmark import retrieval
from regard_lab.benchmark.retrieval import (
    RetrievalConfig,
    accuracy,
    everything,
    measure,
    sequences,
    state_bytes,
    train_recall,
)
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.recall import RecallTask

TINY = {"pairs": (1,), "vocab_size": 8, "length": 12, "dim": 16, "steps": 60, "sequences": 60}


def test_every_causal_mechanism_is_there_and_nothing_else():
    named = everything()
    assert {catalog.resolve(spec)[0] for spec in named if "/" not in spec} == {
        catalog.resolve(name)[0] for name in catalog.names(supports=("causal",))
    }
    for spec in named:
        assert LanguageModel(RetrievalConfig().model(spec, 0)).mechanisms[0].heads.causal


def test_results_name_state_and_accuracy_beside_the_controls():
    found = measure(RetrievalConfig(specs=("linear / softmax",), seeds=(3,), **TINY))
    assert [row["spec"] for row in found["rows"]] == ["softmax", "uniform", "linear / softmax"]
    exact, _, mixed = found["rows"]
    assert exact["accuracy"] > 0.95
    assert exact["state_bytes"] == 2 * 12 * 2 * 16 * 4
    assert mixed["state_bytes"] == 12 * 2 * 16 * 4 + 16 * 17 * 4
    assert [one["reached"] for one in found["controls"]] == [True, True]
    assert {row["rate"] for row in found["rows"]} == {1e-2}


def test_the_controls_can_miss(monkeypatch):
    monkeypatch.setattr(retrieval, "CONTROLS", ("uniform", "softmax"))
    settings = {**TINY, "pairs": (2,), "steps": 150}
    found = measure(RetrievalConfig(specs=(), **settings))
    assert [one["reached"] for one in found["controls"]] == [False, False]


def test_the_rate_with_the_best_validation_is_reported():
    found = measure(RetrievalConfig(specs=(), rates=(1e-9, 1e-2), **TINY))
    assert found["rows"][0]["rate"] == 1e-2
    slow = train_recall(
        RetrievalConfig(**TINY).model("softmax", 0), RetrievalConfig(**TINY).task(1), steps=60, rate=1e-9
    )
    assert slow.test < found["rows"][0]["accuracy"]


def test_training_repeats_and_depends_on_its_seed():
    config = RetrievalConfig(**{**TINY, "steps": 3})
    one, again, other = (
        train_recall(config.model("softmax", s), config.task(1), seed=s, steps=3).loss for s in (0, 0, 1)
    )
    assert one == again != other


def test_auxiliary_losses_are_trained(monkeypatch):
    config = RetrievalConfig(**{**TINY, "steps": 2})
    losses, given = [], stack.loss_weights
    for weight in (0.0, 100.0):
        monkeypatch.setattr(stack, "loss_weights", lambda layers, to=weight: dict.fromkeys(given(layers), to))
        model = config.model("vector_quantized(num_codes=2)", 0)
        losses.append(train_recall(model, config.task(1), steps=2).loss[-1])
    assert losses[0] != losses[1]


def test_accuracy_counts_questions_only():
    task = RecallTask(RetrievalConfig(**TINY).task(1))
    tokens, answers = sequences(task, "valid", range(60))
    solved = torch.stack([torch.from_numpy(task.solve(row.numpy())) for row in tokens])

    class Solver(LanguageModel):
        def forward(self, tokens, **options):
            logits = torch.nn.functional.one_hot(solved, 8).float()
            return super().forward(tokens, **options)._replace(logits=logits)

    assert accuracy(Solver(RetrievalConfig(**TINY).model("softmax", 0)), task, "valid") == 1
    assert int((answers != IGNORE).sum()) == 60


def test_a_mechanism_without_a_state_has_no_bytes():
    spec = "regard_lab.published.performer_published:PerformerPublished"
    assert state_bytes(LanguageModel(RetrievalConfig().model(spec, 0)), 64) is None


def test_bad_plans_are_refused():
    with pytest.raises(ConfigError, match=r"pairs must not be empty(.|\n)*steps must be at least 1, got 0"):
        RetrievalConfig(pairs=(), steps=0)
    with pytest.raises(ConfigError, match="rates must be positive, got 0"):
        RetrievalConfig(rates=(0.0,))
    with pytest.raises(ConfigError, match="num_pairs=17 is not possible"):
        RetrievalConfig(pairs=(17,))
    with pytest.raises(ConfigError, match="names 3 layers, and these models have 2"):
        measure(RetrievalConfig(specs=("softmax / linear / softmax",)))
    with pytest.raises(UnsupportedError, match="linformer does not support causal"):
        measure(RetrievalConfig(specs=("linformer(rank=4)",)))
