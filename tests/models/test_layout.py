"""Weights by columns: the same model, written and read the same way."""

import copy

import pytest
import torch

from regard.models import LanguageModel, ModelConfig
from regard.models.layout import by_columns
from regard_lab.training.checkpoint import own_tensors

TOKENS = torch.arange(24).view(2, 12) % 50


def model(**options) -> LanguageModel:
    return LanguageModel(ModelConfig(dim=32, heads=4, vocab_size=50, mlp="swiglu", **options)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_values_stay_and_products_agree(tied):
    before, after = model(tied=tied), model(tied=tied)
    by_columns(after)
    for (name, own), other in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
        assert torch.equal(own, other), name
    products = [x.weight for x in after.modules() if isinstance(x, torch.nn.Linear)]
    products += [after.table.weight] if tied else []
    tall = [x for x in products if x.shape[0] > x.shape[1]]
    assert tall
    assert all(x.stride() == (1, x.shape[0]) for x in tall)
    with torch.no_grad():
        torch.testing.assert_close(after(TOKENS).logits, before(TOKENS).logits, rtol=0, atol=1e-5)


def test_it_can_be_copied_trained_and_saved():
    before, after = model(), model()
    by_columns(after)
    after = copy.deepcopy(after)
    for one in (before, after):
        one(TOKENS).logits.square().mean().backward()
        torch.optim.SGD(one.parameters(), lr=0.1).step()
    for (name, own), (_, other) in zip(own_tensors(before).items(), own_tensors(after).items(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5, msg=name)
