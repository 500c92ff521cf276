"""The parts of a block against their formulas, written out."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, relu, rms_norm, silu

from regard.core import generator
from regard.layer import AttentionLayer, linear
from regard.models.blocks.residual import Residual as Block
from regard.models.config import ModelConfig
from regard.models.parts import Mlp, ShortConvolution


def signed(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("kind", "act"), [("gelu", gelu), ("gelu_tanh", tanh_gelu), ("relu", relu)])
def test_mlp_is_its_formula(kind: str, act) -> None:
    mlp = Mlp(6, 10, kind, bias=True, draw=generator(1)).double()
    torch.nn.init.normal_(mlp.up.bias, generator=generator(2))
    x = signed(2, 3, 6)
    expected = act(x @ mlp.up.weight.T + mlp.up.bias) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "act"), [("swiglu", silu), ("geglu", gelu), ("geglu_tanh", tanh_gelu)])
def test_gated_mlp_is_its_formula(kind: str, act) -> None:
    mlp = Mlp(6, 10, kind, bias=False, draw=generator(1)).double()
    assert mlp.gate is not None
    x = signed(2, 3, 6)
    expected = (act(x @ mlp.gate.weight.T) * (x @ mlp.up.weight.T)) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-12)


def test_linear_is_drawn_from_its_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (linear(200, 300, bias=True, draw=generator(seed), scale=0.5) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.weight.std().item() == pytest.approx(0.5 * 200**-0.5, rel=0.02)
    assert not one.bias.any()


def test_short_convolution_is_its_sum() -> None:
    convolution = ShortConvolution(3, 4, draw=generator(0)).double()
    x, taps = signed(2, 6, 3), convolution.taps
    y, state = convolution(x)
    for t in range(6):
        expected = sum(taps[s] * x[:, t - s] for s in range(4) if t >= s)
        torch.testing.assert_close(y[:, t], expected, rtol=0, atol=1e-12)
    assert torch.equal(state["tail"], x[:, 3:])


@pytest.mark.parametrize("split", [0, 1, 2, 3, 5, 6])
def test_short_convolution_streams(split: int) -> None:
    convolution = ShortConvolution(3, 4, draw=generator(0)).double()
    x = signed(2, 6, 3)
    whole, end = convolution(x)
    first, state = convolution(x[:, :split])
    second, after = convolution(x[:, split:], None, state)
    assert torch.equal(torch.cat([first, second], 1), whole)
    assert torch.equal(after["tail"], end["tail"])
    assert after.length == end.length == 6


def test_short_convolution_reads_masked_positions_as_the_start() -> None:
    convolution = ShortConvolution(3, 3, draw=generator(0)).double()
    x = signed(1, 6, 3)
    mask = torch.tensor([[False, False, True, True, True, True]])
    torch.testing.assert_close(convolution(x, mask)[0][:, 2:], convolution(x[:, 2:])[0], rtol=0, atol=0)
    assert not torch.equal(convolution(x)[0][:, 2:], convolution(x[:, 2:])[0])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_block_is_its_formula(place: str, kind: str) -> None:
    config = ModelConfig(dim=8, heads=2, norm=place, norm_kind=kind, norm_eps=0.03, mlp="relu", bias=True)
    layer = AttentionLayer(8, "softmax", heads=2, bias=True)
    block = Block(config, layer, seed=3).double().eval()
    draw = generator(9)
    with torch.no_grad():
        for weight in block.parameters():
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    x = signed(2, 5, 8)

    def norm(x: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
        if kind == "rms":
            return rms_norm(x, (8,), module.weight, 0.03)
        return layer_norm(x, (8,), module.weight, module.bias, 0.03)

    if place == "pre":
        y = x + layer(norm(x, block.attention_norm)).hidden
        expected = y + block.mlp(norm(y, block.mlp_norm))
    else:
        y = norm(x + layer(x).hidden, block.attention_norm)
        expected = norm(y + block.mlp(y), block.mlp_norm)
    torch.testing.assert_close(block(x).hidden, expected, rtol=0, atol=1e-12)


def test_block_without_mlp() -> None:
    config = ModelConfig(dim=8, heads=2, mlp="none")
    layer = AttentionLayer(8, "softmax", heads=2)
    block = Block(config, layer, seed=3).double().eval()
    x = signed(2, 5, 8)
    expected = x + layer(layer_norm(x, (8,), block.attention_norm.weight, None, 1e-5)).hidden
    torch.testing.assert_close(block(x).hidden, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("place", "scale"), [("pre", 8**-0.5), ("post", 1.0)])
def test_residual_outputs_shrink_with_depth_under_pre_norm(place: str, scale: float) -> None:
    config = ModelConfig(dim=64, heads=2, layers=4, norm=place)
    block = Block(config, AttentionLayer(64, "softmax", heads=2), seed=0)
    assert block.mlp is not None
    assert block.attention.projections.output.weight.std().item() == pytest.approx(scale / 8, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(scale / 16, rel=0.05)
    assert block.mlp.up.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
