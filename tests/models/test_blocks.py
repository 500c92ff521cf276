"""The parts of a block against their formulas, written out."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, relu, silu

from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.layer import AttentionLayer, linear
from regard.models import Encoder, EncoderConfig, LanguageModel, presets
from regard.models.blocks import block_class, names
from regard.models.config import ModelConfig
from regard.models.parts import Mlp, ShortConvolution
from tests.models.moved import moved


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


def test_short_convolution_reads_masked_positions_as_the_start() -> None:
    convolution = ShortConvolution(3, 3, draw=generator(0)).double()
    x = signed(1, 6, 3)
    mask = torch.tensor([[False, False, True, True, True, True]])
    torch.testing.assert_close(convolution(x, mask)[0][:, 2:], convolution(x[:, 2:])[0], rtol=0, atol=0)
    assert not torch.equal(convolution(x)[0][:, 2:], convolution(x[:, 2:])[0])


PLACED = [(name, place) for name in names() for place in (("pre",) if name == "reversible" else ("pre", "post"))]


def mlp_for(name: str) -> str:
    """The only MLP that a gated unit takes; otherwise any."""
    return "none" if name == "gated_unit" else "relu"


def block_of(name: str, **options: Any) -> Any:
    """A block with weights off their initial values."""
    config = ModelConfig(dim=8, heads=2, block=name, mlp=mlp_for(name), **options)
    layer = AttentionLayer(8, config.attention[0], heads=2, bias=config.bias, causal=True)
    return moved(block_class(name)(config, layer, seed=3))


def stream(name: str, length: int = 5, *, seed: int = 0) -> torch.Tensor:
    """What may enter a block of width 8."""
    return signed(2, length, block_class(name).enter(torch.zeros(1, 1, 8)).shape[2], seed=seed)


@pytest.mark.parametrize("kind", ["layer", "rms", "rms_unscaled"])
def test_norms_are_their_formulas(kind: str) -> None:
    """LayerNorm: Ba et al. 2016, equation 4; RMSNorm: Zhang and Sennrich 2019, equation 4."""
    norm, x = block_of("residual", norm_kind=kind, norm_eps=0.03, bias=True).attention_norm, signed(2, 5, 8)
    y = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    y = y / (y.square().mean(-1, keepdim=True) + 0.03).sqrt()
    assert (norm.weight is None) == (kind == "rms_unscaled")
    y = y if norm.weight is None else y * norm.weight
    torch.testing.assert_close(norm(x), y + norm.bias if kind == "layer" else y, rtol=0, atol=1e-12)


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize(("name", "place"), PLACED)
def test_dropout_is_of_both_branches_in_training(name: str, place: str) -> None:
    """Twice what each branch gives is the block whose output weights are twice as large."""
    block, double, x = block_of(name, norm=place), block_of(name, norm=place), stream(name)
    plain = block(x).hidden
    block.dropout = Twice()
    assert torch.equal(block(x).hidden, plain)
    with torch.no_grad():
        for layer in (double.attention.projections.output, double.mlp and double.mlp.down):
            for weight in layer.parameters() if layer else ():
                weight.mul_(2)
    torch.testing.assert_close(block.train()(x).hidden, double(x).hidden, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "again", "calls"),
    [
        (name, again, calls)
        for name in names()
        for again, calls in (("none", (1, 1)), ("attention", (2, 1)), ("block", (2, 2)))
        if again == "none" or name != "reversible"
    ],
)
def test_a_block_computes_again_what_it_was_told_to(name: str, again: str, calls: tuple[int, int]) -> None:
    """Calls of attention and MLP in a forward and a backward pass, whose gradients are those of an ordinary one."""
    block, ordinary = block_of(name, checkpoint=again).train(), block_of(name).train()
    counted = {part: 0 for part in ("attention", "mlp") if getattr(block, part) is not None}
    for part in counted:

        def count(module: torch.nn.Module, given: object, part: str = part) -> None:
            counted[part] += 1

        getattr(block, part).register_forward_pre_hook(count)
    x, target = stream(name), stream(name, seed=1)
    got, wanted = (
        torch.autograd.grad((each(x).hidden * target).sum(), list(each.parameters())) for each in (block, ordinary)
    )
    assert tuple(counted.values()) == calls[: len(counted)]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, place in PLACED if name != "gated_unit"])
def test_residual_outputs_shrink_with_depth_under_pre_norm(name: str, place: str) -> None:
    config, scale = ModelConfig(dim=64, heads=2, layers=4, norm=place, block=name), 8**-0.5 if place == "pre" else 1.0
    block = block_class(name)(config, AttentionLayer(64, "softmax", heads=2, causal=True), seed=0)
    assert block.mlp is not None
    assert block.attention.projections.output.weight.std().item() == pytest.approx(scale / 8, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(scale / 16, rel=0.05)
    assert block.mlp.up.weight.std().item() == pytest.approx(1 / 8, rel=0.05)


def test_a_gated_unit_has_no_mlp_and_one_branch() -> None:
    config = ModelConfig(dim=64, heads=2, layers=4, block="gated_unit", mlp="none", head_dim=16)
    block = LanguageModel(config).blocks[0]
    assert block.mlp is None
    assert block.attention.heads.value_dim == 64
    assert block.attention.projections.output.weight.std().item() == pytest.approx(4**-0.5 / 128**0.5, rel=0.05)
    with pytest.raises(ConfigError, match="gates in the place of an MLP; set mlp='none'"):
        LanguageModel(ModelConfig(dim=64, block="gated_unit"))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_gated_projections_are_their_loops(bias: bool, heads: int) -> None:
    """SPEC G1, a query and a number at a time: relu(q . k / c)^2 over a constant, values gated by their query."""
    dim, width, wide, constant, n = 5, 4, 6, 7.0, 6
    spec = f"relu_squared(constant={constant})"
    layer = AttentionLayer(
        dim,
        spec,
        heads=heads,
        key_dim=width,
        value_dim=wide,
        position=None,
        projections="gated",
        bias=bias,
        seed=2,
        causal=True,
    )
    p, x = moved(layer).projections, signed(1, n, dim)
    assert (p.query_scale.offset is None) is not bias
    z = silu(torch.nn.functional.linear(x[0], p.base.weight, p.base.bias))
    values = silu(torch.nn.functional.linear(x[0], p.value.weight, p.value.bias))
    gates = silu(torch.nn.functional.linear(x[0], p.gate.weight, p.gate.bias))

    def scaled(scale: Any, h: int, i: int, c: int) -> float:
        offset = 0.0 if scale.offset is None else scale.offset[h, 0, c].item()
        return z[i, c].item() * scale.gain[h, 0, c].item() + offset

    mixed = torch.zeros(n, heads * wide, dtype=torch.float64)
    for h in range(heads):
        for i in range(n):
            for j in range(i + 1):
                product = sum(scaled(p.query_scale, h, i, c) * scaled(p.key_scale, h, j, c) for c in range(width))
                weight = max(0.0, product / constant) ** 2
                mixed[i, h * wide : (h + 1) * wide] += weight * values[j, h * wide : (h + 1) * wide]
    expected = torch.nn.functional.linear(gates * mixed, p.output.weight, p.output.bias)
    torch.testing.assert_close(layer(x).hidden[0], expected, rtol=0, atol=1e-12)


def gains(config: ModelConfig) -> list[torch.Tensor]:
    """Of queries and keys in every block."""
    blocks = [block.attention.projections for block in LanguageModel(config).blocks]
    return [scale.gain for one in blocks for scale in (one.query_scale, one.key_scale)]


def test_gains_start_where_they_are_told_and_near_0_where_nothing_is_said() -> None:
    """A configuration that was saved before they could be told says nothing, and draws what it drew."""
    small = {"vocab_size": 9, "dim": 8, "layers": 2, "head_dim": 64, "max_length": 16}
    for name in ("gau", "flash"):
        assert all(bool((gain == 1).all()) for gain in gains(presets.build(name, **small)))
        drawn = gains(presets.build(name, unit_gain=None, **small))
        assert all(0.01 < float(gain.detach().std()) < 0.04 for gain in drawn)
        saved = asdict(presets.build(name, unit_gain=None, **small))
        del saved["unit_gain"]
        again = gains(ModelConfig(**saved))
        assert all(torch.equal(one, other) for one, other in zip(drawn, again, strict=True))
    assert presets.build("transformer_vq", **small).unit_gain is None


@pytest.mark.parametrize(("gain", "block"), [(0.0, "gated_unit"), (-1.0, "gated_unit"), (1.0, "residual")])
def test_a_gain_that_nothing_can_start_at(gain: float, block: str) -> None:
    with pytest.raises(ConfigError, match="unit_gain must be more than 0"):
        ModelConfig(dim=8, heads=1, block=block, mlp="none", unit_gain=gain)


def test_what_gated_projections_refuse() -> None:
    for sizes in ({"context_dim": 9}, {"query_dim": 3}):
        with pytest.raises(ConfigError, match="one width and one source"):
            AttentionLayer(8, "additive", heads=2, projections="gated", **sizes)
    pooled = AttentionLayer(8, "uniform", heads=2, projections="gated", causal=True)  # reads no queries and no keys
    assert pooled.projections.base is None
    assert pooled(torch.randn(1, 4, 8)).hidden.shape == (1, 4, 8)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("mechanism", ["softmax", "relu_squared", "mixed_chunk(chunk_size=4)"])
def test_blocks_run_under_autocast(name: str, mechanism: str) -> None:
    config = ModelConfig(dim=16, heads=2, attention=(mechanism,), block=name, mlp=mlp_for(name))
    model = LanguageModel(config)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens).logits
    logits.float().square().mean().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    assert (logits.float() - model(tokens).logits).abs().max() < 0.2


def test_a_gated_unit_refuses_what_it_would_ignore() -> None:
    shape = {"dim": 32, "block": "gated_unit", "mlp": "none"}
    with pytest.raises(ConfigError, match="has projections of its own; leave projections='global' out"):
        Encoder(EncoderConfig(**shape, attention=("longformer(window=2)",), projections="global"))
    with pytest.raises(ConfigError, match="2 dim = 64 wide, which heads=3 do not divide"):
        LanguageModel(ModelConfig(**shape, heads=3, head_dim=16))
