"""Weights of 8 bits: the product against its definition, and a model that has them."""

import copy
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import UnsupportedError
from regard.models import LanguageModel, ModelConfig, presets
from regard.models.generate import generate
from regard.models.packed import PackedLinear, PackedPart, _levels, pack

ROUNDING = 0.8 / _levels() ** 2
"""Twice what two roundings take from a row, relative: components are off by |x|max / (2 levels^2 sqrt(12)) in the root
of the mean square, and of some fifty normal numbers the largest is about 2.6 times that root."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(weight: Tensor) -> Tensor:
    step = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / step) * step


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def model(**options: object) -> LanguageModel:
    return LanguageModel(presets.build("llama", dim=64, heads=4, layers=2, vocab_size=80, **options)).eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 7), (5, 1)])
def test_it_is_the_product_with_rounded_weights(shape: tuple[int, ...], bias: bool) -> None:
    weight, x = drawn(70, 48, seed=1), drawn(*shape, 48)
    shift = drawn(70, seed=2) if bias else None
    assert off(PackedLinear(weight, shift)(x), nn.functional.linear(x, rounded(weight), shift)) < ROUNDING


@pytest.mark.parametrize("bias", [False, True])
def test_the_last_outputs_may_have_weights_of_two_bytes(bias: bool) -> None:
    weight, x = drawn(70, 48, seed=1), drawn(2, 3, 48)
    shift = drawn(70, seed=2) if bias else None
    found, wanted = PackedLinear(weight, shift, fine=20)(x), nn.functional.linear(x, weight, shift)
    assert off(found[..., -20:], wanted[..., -20:]) < 2 * ROUNDING
    assert off(found[..., :-20], nn.functional.linear(x, rounded(weight), shift)[..., :-20]) < ROUNDING


def test_a_row_is_the_same_alone_and_beside_others() -> None:
    linear, x = PackedLinear(drawn(30, 48), None), drawn(1, 6, 48)
    whole = linear(x)
    x[0, 5] *= 1e4
    assert linear(x)[0, :5].equal(whole[0, :5])
    assert linear(x[:, 2:3]).equal(whole[:, 2:3])


def test_a_few_large_components_cost_a_row_nothing() -> None:
    weight, x = drawn(30, 48), drawn(1, 1, 48)
    x[0, 0, 3] = 500.0
    small = x.clone()
    small[0, 0, 3] = 0.0  # what is left without the large component must not be lost
    found = PackedLinear(weight, None)(x) - 500.0 * rounded(weight)[:, 3]
    assert off(found, nn.functional.linear(small, rounded(weight))) < 2e-2


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="for processors with these instructions")
def test_where_products_of_bytes_saturate_fewer_levels_are_used_and_nothing_is_lost() -> None:
    script = """
import torch
from regard.models.packed import _LEVELS, _SAFE_LEVELS, PackedLinear, _levels
weight, x = (torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(0)).abs() for _ in range(2))
weight, x = weight[0], x[1]  # of one sign, so that sums of products are large
step = weight.abs().amax(1, keepdim=True) / 127
wanted = x @ (torch.round(weight / step) * step).T
found = PackedLinear(weight, None)(x)
print(_levels() == _SAFE_LEVELS < _LEVELS, float((found - wanted).norm() / wanted.norm()) < 0.8 / _levels() ** 2)
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_computes_nearly_what_it_did(tied: bool) -> None:
    own, other = model(tied=tied), model(tied=tied)
    pack(other)
    assert not [m for m in other.modules() if isinstance(m, nn.Linear)]
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        wanted, whole = own(tokens).logits, other(tokens).logits
        assert 1e-4 < off(whole, wanted) < 3e-2
        state, streamed = other.initial_state(1), []
        for token in tokens[0]:
            got = other(token.reshape(1, 1), state=state)
            state = got.state
            streamed.append(got.logits)
    assert off(torch.cat(streamed, 1), whole[:1]) < 4 * ROUNDING  # two bytes of every row
    (row,) = generate(other, [[1, 2, 3]], max_new_tokens=4, temperature=0)
    assert len(row.tokens) == 4


def test_the_bias_of_an_output_layer_is_kept() -> None:
    model = LanguageModel(ModelConfig(dim=32, layers=1, heads=2, vocab_size=40, tied=False, output_bias=True)).eval()
    with torch.no_grad():
        model.output.bias.copy_(torch.arange(40.0) * 10)
    before = model(torch.arange(8)[None]).logits
    pack(model)
    assert (model(torch.arange(8)[None]).logits - before).abs().max() < 1


def test_it_is_for_inference_alone() -> None:
    own = model()
    pack(own)
    assert not [name for name, x in own.named_parameters() if x.requires_grad]
    assert not own(torch.tensor([[1, 2]])).logits.requires_grad
    with pytest.raises(UnsupportedError, match=r"weights of 8 bits.*cannot be trained; load it again"):
        own.train()
    with pytest.raises(UnsupportedError, match=r"blocks\.0\.attention\.projections\.query is not written"):
        own.state_dict()
    with pytest.raises(UnsupportedError, match="no gradient flows"):
        PackedLinear(drawn(3, 4), None)(drawn(2, 4).requires_grad_())


def test_another_device_is_refused_and_nothing_changed() -> None:
    own = model().to("meta")
    with pytest.raises(UnsupportedError, match="this model is on meta"):
        pack(own)
    assert isinstance(own.get_submodule("blocks.0.mlp.up"), nn.Linear)


@pytest.mark.parametrize("scale", [1e-30, 1e-5, 1e-3, 1.0, 1e5])
def test_one_row_of_any_size_is_rounded_alike(scale):
    draw = torch.Generator().manual_seed(0)
    weight, x = torch.randn(32, 48, generator=draw), scale * torch.randn(1, 1, 48, generator=draw)
    wanted = x @ weight.T / scale
    assert off(PackedLinear(weight, None)(x) / scale, wanted) < 0.01


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_one_row_with_a_number_that_is_not_finite_stays_so(number):
    x = torch.ones(1, 1, 48)
    x[..., 3] = number
    assert not PackedLinear(torch.ones(32, 48), None)(x).isfinite().any()


def test_packed_twice_is_packed_once():
    model = LanguageModel(ModelConfig(dim=32, vocab_size=50))
    pack(model)
    before = model(torch.tensor([[1, 2]])).logits
    pack(model)
    assert model(torch.tensor([[1, 2]])).logits.equal(before)


@pytest.mark.parametrize("heads", [{"kv_heads": 2}, {"projection_bias": True}])
def test_layers_of_the_same_inputs_are_one_product_and_values_keep_two_bytes(heads, monkeypatch):
    own, other = model(**heads), model(**heads)
    pack(other)
    before, after = own.layers[0].projections, other.layers[0].projections
    x = drawn(1, 3, 64)
    with torch.no_grad():
        for name, least, most in (("query", 1e-3, 2e-2), ("key", 1e-3, 2e-2), ("value", 0.0, 2 * ROUNDING)):
            assert isinstance(getattr(after, name), PackedPart)
            assert least < off(getattr(after, name)(x), getattr(before, name)(x)) < most
    asked, honest = [], PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: asked.append(self) or honest(self, x))
    other(torch.tensor([[1, 2]]))
    assert len(asked) == len(set(asked)) == 4 * 2 + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_another_dtype_is_that_of_the_rest(dtype):
    own = model()
    pack(own)
    tokens = torch.tensor([[1, 2, 3]])
    wanted = own(tokens).logits
    cast = copy.deepcopy(own).to(dtype)
    got = cast(tokens, state=cast.initial_state(1))
    assert got.logits.dtype == dtype
    assert (
        off(got.logits.float(), wanted)
        < {torch.float64: 2 * ROUNDING, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    )
    cast.float()
    assert cast(tokens).logits.dtype == torch.float32


def test_packed_weights_do_not_move():
    own = model()
    pack(own)
    with pytest.raises(UnsupportedError, match=r"weights of 8 bits.*they stay on the CPU; load it again"):
        own.to("meta")
    with pytest.raises(UnsupportedError, match="they stay on the CPU"):
        own.get_submodule("blocks.0.mlp.gate").to("meta")


def test_what_is_refused_changes_nothing():
    """torch tells the parts of a model one after the other, and parents before those that refuse."""
    model = LanguageModel(ModelConfig(dim=32, heads=4, vocab_size=50, dropout=0.5))
    pack(model)
    tokens = torch.tensor([[1, 2, 3]])
    wanted = model(tokens).logits
    for wrong in (lambda: model.train(), lambda: model.to("meta")):
        with pytest.raises(UnsupportedError, match="8 bits"):
            wrong()
        assert not any(part.training for part in model.modules())
        assert {weight.device.type for weight in model.parameters()} == {"cpu"}
        assert torch.equal(model(tokens).logits, wanted)
    assert model.eval() is model
