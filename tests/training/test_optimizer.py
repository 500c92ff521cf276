import pytest
import torch
from torch import nn

from regard.core.info import Heads
from regard.models import LanguageModel, ModelConfig
from regard.position import build_position
from regard_lab.training.optimizer import adamw, decayed, set_rate


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        heads = Heads(count=2, key_dim=4, max_length=5)
        self.embedding = nn.Embedding(7, 8)
        self.output = nn.Linear(8, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.position = build_position("learned", heads, 8)
        self.position.inner = nn.Embedding(3, 8)
        self.norm = nn.LayerNorm([2, 8])
        self.rms = nn.RMSNorm(8)
        self.linear = nn.Linear(8, 8)
        self.head_bias = nn.Parameter(torch.randn(2, 4))
        self.matrix = nn.Parameter(torch.randn(2, 4, 4))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)


def test_only_matrices_decay():
    decays = decayed(Parts())
    assert {name for name, chosen in decays.items() if chosen} == {"linear.weight", "matrix"}
    assert {name for name, chosen in decays.items() if not chosen} == {
        "embedding.weight",
        "position.table",
        "position.inner.weight",
        "norm.weight",
        "norm.bias",
        "rms.weight",
        "linear.bias",
        "head_bias",
    }


def test_embeddings_decay_when_asked_and_position_tables_still_do_not():
    chosen = {name for name, decays in decayed(Parts(), embeddings=True).items() if decays}
    assert chosen == {"linear.weight", "matrix", "embedding.weight"}


def test_every_parameter_of_a_real_model_is_in_one_group():
    model = LanguageModel(ModelConfig(dim=16, heads=2, position="learned", bias=True, norm_kind="layer"))
    optimizer = adamw(model, weight_decay=0.1)
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(x) for x in grouped} == {id(x) for x in model.parameters()}
    assert len(grouped) == len(set(map(id, grouped)))
    decays = decayed(model)
    assert not decays["embeddings.position.table"]
    assert not decays["embeddings.table.weight"]
    assert all(
        chosen == (p.ndim == 2)
        for (n, p), chosen in zip(model.named_parameters(), decays.values(), strict=True)
        if n not in ("embeddings.position.table", "embeddings.table.weight")
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_steps_equal_the_formula(steps):
    """Algorithm 2 of Loshchilov & Hutter, written out in float64; tolerance 1e-12."""
    draw = torch.Generator().manual_seed(0)
    layer = nn.Linear(5, 3).double()
    optimizer = adamw(layer, betas=(0.8, 0.9), epsilon=1e-6, weight_decay=0.3)
    expected = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    m = {name: torch.zeros_like(x) for name, x in expected.items()}
    v = {name: torch.zeros_like(x) for name, x in expected.items()}
    for step in range(1, steps + 1):
        rate = 0.05 / step
        set_rate(optimizer, rate)
        for name, parameter in layer.named_parameters():
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=draw)
            m[name] = 0.8 * m[name] + 0.2 * parameter.grad
            v[name] = 0.9 * v[name] + 0.1 * parameter.grad**2
            decay = 0.3 if name == "weight" else 0.0
            adaptive = (m[name] / (1 - 0.8**step)) / ((v[name] / (1 - 0.9**step)).sqrt() + 1e-6)
            expected[name] = expected[name] - rate * (decay * expected[name] + adaptive)
        optimizer.step()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-12)
