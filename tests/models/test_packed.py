"""Weights of 8 bits: the product against its definition, and a model that has them."""

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UnsupportedError
from regard.models import LanguageModel, ModelConfig, presets
from regard.models.generate import generate
from regard.models.packed import PackedLinear, pack


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
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1)])
def test_it_is_the_product_with_rounded_weights(shape: tuple[int, int], bias: bool) -> None:
    weight, x = drawn(70, 48, seed=1), drawn(*shape, 48)
    shift = drawn(70, seed=2) if bias else None
    wanted = nn.functional.linear(x, rounded(weight), shift)
    one = shape == (1, 1)
    for fine in (False, True):
        found = PackedLinear(weight, shift, fine=fine)(x)
        assert off(found, wanted) < (2e-2 if one and not fine else 1e-4)


def test_rows_do_not_depend_on_each_other() -> None:
    linear, x = PackedLinear(drawn(30, 48), None, fine=False), drawn(1, 6, 48)
    alone = linear(x)
    x[0, 5] *= 1e4
    assert linear(x)[0, :5].equal(alone[0, :5])


def test_a_few_large_components_cost_a_split_row_nothing() -> None:
    weight, x = drawn(30, 48), drawn(1, 1, 48)
    x[0, 0, 3] = 500.0
    small = x.clone()
    small[0, 0, 3] = 0.0  # what is left without the large component must not be lost
    for fine, low, high in ((True, 0.0, 2e-2), (False, 0.3, 2.0)):
        linear = PackedLinear(weight, None, fine=fine)
        wanted = nn.functional.linear(small, rounded(weight))
        found = linear(x) - 500.0 * rounded(weight)[:, 3]
        assert low <= off(found, wanted) < high


def test_a_row_of_zeros_gives_the_bias() -> None:
    shift = drawn(30)
    for fine in (False, True):
        assert PackedLinear(drawn(30, 48), shift, fine=fine)(torch.zeros(2, 48)).allclose(shift.expand(2, -1))


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
    assert off(torch.cat(streamed, 1), wanted[:1]) < 5e-2  # one row alone is rounded once, to 256 levels
    (row,) = generate(other, [[1, 2, 3]], max_new_tokens=4, temperature=0)
    assert len(row.tokens) == 4


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
        PackedLinear(drawn(3, 4), None, fine=True)(drawn(2, 4).requires_grad_())


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
    assert off(PackedLinear(weight, None, fine=False)(x) / scale, wanted) < 0.02


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_one_row_with_a_number_that_is_not_finite_stays_so(number):
    x = torch.ones(1, 1, 48)
    x[..., 3] = number
    assert not PackedLinear(torch.ones(32, 48), None, fine=False)(x).isfinite().any()


def test_packed_twice_is_packed_once():
    model = LanguageModel(ModelConfig(dim=32, vocab_size=50))
    pack(model)
    before = model(torch.tensor([[1, 2]])).logits
    pack(model)
    assert model(torch.tensor([[1, 2]])).logits.equal(before)
