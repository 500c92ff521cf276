"""Pictures of the attention matrix of every layer, whatever its mechanism needs besides queries and keys."""

from typing import Any, cast

import pytest
import torch

from regard.core.attention import Attention
from regard.layer import AttentionLayer
from regard.models import ModelConfig
from regard_lab.benchmark.quality import Job, perform, pictures
from regard_lab.tasks import build_task
from regard_lab.tasks.config import RecallConfig
from regard_lab.training import network
from regard_lab.training.config import TrainingConfig

TASK = build_task(RecallConfig(vocab_size=16, length=16, num_pairs=2, num_held_out=4), seed=0)


@pytest.mark.parametrize(
    "spec",
    [
        "forgetting",
        "rfa(gate=True, num_features=8)",
        "softmax:1 + forgetting:1",
        "forgetting:1 + rfa(gate=True, num_features=8):1",
        "tests.mutants.toys:ToyDecay",
        "softmax",
    ],
)
def test_a_picture_shows_the_weights_that_the_layer_used(spec):
    config = ModelConfig(dim=8, layers=2, heads=2, attention=(spec,))
    model = cast(Any, network.build(network.fitted(config, TASK), 0))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "inputs." in name:
                weight.normal_(generator=torch.Generator().manual_seed(1))
    found = pictures(model, TASK)
    assert [one["layer"] for one in found] == [0, 1]
    used: list[tuple[torch.Tensor, torch.Tensor]] = []

    def remember(module, arguments, named, output):
        used.append((arguments[2][0, 0], output.values[0, 0]))

    hooks = [cast(Attention, m).register_forward_hook(remember, with_kwargs=True) for m in model.mechanisms]
    with torch.no_grad():
        model(torch.from_numpy(TASK.examples("valid")[0].inputs[:64])[None])
    for hook in hooks:
        hook.remove()
    for one, (v, values) in zip(found, used, strict=True):
        matrix = torch.tensor(one["matrix"])
        assert matrix.shape == (len(values), len(v))
        assert (matrix @ v - values).abs().max() < 5e-3  # four digits are kept
        assert (matrix.triu(1) == 0).all()


def test_a_bias_is_in_the_picture():
    config = ModelConfig(dim=8, layers=1, heads=2, attention=("forgetting",), position="alibi")
    model = cast(Any, network.build(network.fitted(config, TASK), 0))
    (biased,) = pictures(model, TASK)
    (layer,) = [module for module in model.modules() if isinstance(module, AttentionLayer)]
    layer.position = None
    (plain,) = pictures(model, TASK)
    assert (torch.tensor(biased["matrix"]) - torch.tensor(plain["matrix"])).abs().max() > 0.01


def job(tmp_path, **changes) -> Job:
    return Job(
        model=ModelConfig(dim=8, layers=1, heads=1, attention=("softmax",)),
        task_config=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_held_out=8),
        training=TrainingConfig(steps=40, batch_size=2, log_every=5, checkpoint_every=20, device="cpu", threads=1),
        run=str(tmp_path / "run"),
        **changes,
    )


def test_a_training_stops_with_the_step_in_which_its_time_is_over(tmp_path):
    """What it learned until then is measured, and speed is known though no line was logged."""
    found = perform(job(tmp_path, seconds=0.0))
    assert found["steps"] == 1
    assert found["step_seconds"] > 0
    assert found["curve"] == []
    assert sum(found["documents"]["tokens"]) == 8 * 2
    assert perform(job(tmp_path / "whole", seconds=600.0))["steps"] == 40


def test_a_probe_says_what_setup_a_step_and_an_example_take(tmp_path):
    found = perform(job(tmp_path, steps_only=3, seconds=600.0))
    assert 0 < found["seconds"] < found["total"]
    assert 0 < found["setup"] < found["total"]
    assert 0 < found["example_seconds"] < found["total"]
    assert not (tmp_path / "run").exists()
