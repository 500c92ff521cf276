"""Pictures of the attention matrix of every layer, whatever its mechanism needs besides queries and keys."""

from typing import Any, cast

import pytest
import torch

from regard.benchmark.quality import pictures
from regard.core import Attention
from regard.layer import AttentionLayer
from regard.models import ModelConfig
from regard.tasks import build_task
from regard.tasks.config import RecallConfig
from regard.training import network

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
