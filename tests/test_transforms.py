"""Transforms of functions around mechanisms, layers and models: right, or refused by us or by torch, never silent."""

import re
from pathlib import Path

import pytest
import torch
from torch import func
from torch._dynamo.exc import Unsupported
from torch.autograd import forward_ad

import regard
from regard import AttentionLayer, Heads
from regard.core.errors import UnsupportedError
from regard.models import LanguageModel, ModelConfig

SOURCES = Path(regard.__file__).parent


def built(spec, **options):
    return regard.build(spec, Heads(count=2, key_dim=4, causal=True, max_length=32), **options).double().eval()


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def objective(mechanism):
    return lambda x: mechanism(x, x, x).values.square().sum()


def test_every_operator_with_a_derivative_is_guarded():
    registered, guards = 0, 0
    for path in SOURCES.rglob("*.py"):
        text = path.read_text("utf-8")
        registered += text.count(".register_autograd(")
        guards += len(re.findall(r"= guarded\(", text))
    assert guards == 2 * registered > 0  # forward and backward


def test_forward_mode_is_refused_wherever_the_tangent_is():
    x, still = drawn(2, 1, 2, 6, 4)
    mechanism = built("local(window=3)")
    for at in range(3):
        with forward_ad.dual_level():
            tensors = [forward_ad.make_dual(x, still) if at == each else x.clone() for each in range(3)]
            with pytest.raises(UnsupportedError, match=r"^the operator regard::tiles .*impl=\"reference\""):
                mechanism(*tensors)
    with forward_ad.dual_level():  # a level without a tangent is none of our business
        assert torch.equal(mechanism(x, x, x).values, mechanism(x, x, x).values)


def test_a_tangent_below_other_transforms_is_refused():
    x, along = drawn(2, 2, 1, 2, 6, 4)
    total = objective(built("local(window=3)"))
    for transform in (
        lambda: func.jvp(func.vmap(total), (x,), (along,)),
        lambda: func.vmap(lambda y, z: func.jvp(total, (y,), (z,)))(x, along),
        lambda: func.jacfwd(total)(x[0]),
    ):
        with pytest.raises(UnsupportedError, match="no forward-mode derivative"):
            transform()
    with forward_ad.dual_level():
        torch.testing.assert_close(func.vmap(total)(x), torch.stack([total(each) for each in x]))


def test_the_tangent_of_a_gradient_is_refused():
    """The backward operator loses tangents too: those of the slopes that come in."""
    x, along = drawn(2, 1, 2, 6, 4)
    values = built("local(window=3)")(*[x.requires_grad_()] * 3).values
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="regard::tiles_backward has no forward-mode"):
        torch.autograd.grad(values, x, forward_ad.make_dual(torch.ones_like(values), along.detach()))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_forward_mode_is_refused_in_a_compiled_call(fullgraph):
    x, along = drawn(2, 1, 2, 6, 4)
    total = objective(built("local(window=3)"))
    torch.compiler.reset()
    compiled = torch.compile(total, backend="eager", fullgraph=fullgraph)
    torch.testing.assert_close(compiled(x), total(x))
    with forward_ad.dual_level(), pytest.raises(Unsupported if fullgraph else UnsupportedError):
        compiled(forward_ad.make_dual(x, along))


def test_the_gradient_of_a_bias_around_vmap():
    """torch has a kernel without a gradient of the logits, which it chooses where `vmap` hides that they need one."""
    mechanism, x, tables = built("softmax"), drawn(1, 2, 6, 4), drawn(3, 1, 1, 6, 6)

    def total(table, mechanism=mechanism):
        return mechanism(x, x, x, bias=regard.ScoreBias(table=table)).values.square().sum()

    leaf = tables.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(torch.stack([total(table) for table in leaf]).sum(), leaf)
    with pytest.raises(RuntimeError):
        func.grad(lambda every: func.vmap(total)(every).sum())(tables)
    definition = built("softmax", impl="reference")
    got = func.grad(lambda every: func.vmap(lambda table: total(table, definition))(every).sum())(tables)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["softmax", "local(window=3)", "performer(num_features=8)", "forgetting"])
@pytest.mark.parametrize("train", [False, True])
def test_gradients_of_a_model(spec, train):
    """`torch.func.grad` is right or raises; of each sample under `vmap` it raises, since ids are checked."""
    config = ModelConfig(
        vocab_size=23, dim=16, heads=2, layers=2, max_length=32, mlp_dim=24, position="rotary", attention=(spec,)
    )
    model = LanguageModel(config).double().train(train)
    tokens = torch.randint(0, 23, (3, 1, 9), generator=torch.Generator().manual_seed(0))
    weights = {name: y.detach() for name, y in model.named_parameters()}

    def loss(weights, tokens):
        return func.functional_call(model, weights, (tokens,)).logits.square().mean()

    with pytest.raises(RuntimeError, match="vmap"):
        func.vmap(func.grad(loss), in_dims=(None, 0))(weights, tokens)
    if spec not in ("softmax", "forgetting"):
        with pytest.raises(RuntimeError, match=r"autograd\.Function"):
            func.grad(loss)(weights, tokens[0])
        return
    for one in tokens:
        got = func.grad(loss)(weights, one)
        model.zero_grad()
        model(one).logits.square().mean().backward()
        for name, y in model.named_parameters():
            torch.testing.assert_close(got[name], torch.zeros_like(y) if y.grad is None else y.grad)


def test_a_state_under_vmap():
    """Slots are written in place without gradients, which `vmap` refuses; with gradients they are concatenated."""
    layer = AttentionLayer(8, "local(window=3)", heads=2, causal=True, max_length=32).double().eval()
    x = drawn(3, 1, 5, 8)

    def last(x):
        state = layer(x[:, :4], state=layer.initial_state(1, dtype=torch.float64)).state
        return layer(x[:, 4:], state=state).hidden

    with torch.no_grad(), pytest.raises(RuntimeError, match="vmap"):
        func.vmap(last)(x)
    torch.testing.assert_close(func.vmap(last)(x), torch.stack([last(one) for one in x]))
