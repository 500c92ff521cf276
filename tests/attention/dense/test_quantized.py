"""Rounded weights and 8-bit keys and values, against whole numbers counted one by one and the stated bounds."""

import math

import pytest
import torch

import regard
from regard.errors import ConfigError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(causal: bool = False, key_dim: int = 4, value_dim: int = 4, kv_count: int = 2, **options) -> torch.nn.Module:
    heads = regard.Heads(count=2, key_dim=key_dim, value_dim=value_dim, kv_count=kv_count, causal=causal)
    return regard.build("quantized", heads, **options).double().eval()


def inputs(length: int = 30, scale: float = 1.0, batch: int = 2) -> list[torch.Tensor]:
    return [draw(batch, 2, length, 4, seed=s) * (scale if s < 2 else 1) for s in range(3)]


def softmax(q: torch.Tensor, k: torch.Tensor, causal: bool = False) -> torch.Tensor:
    logits = q @ k.mT / q.shape[-1] ** 0.5
    return (logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -math.inf) if causal else logits).softmax(
        -1
    )


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 8-bit form of keys or values, and the unit of each head and position."""
    unit = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / unit) * unit, unit


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_one_number_at_a_time(bits: int, causal: bool, renormalise: bool) -> None:
    length = 7
    mechanism = build(causal, key_dim=3, value_dim=2, kv_count=1, bits=bits, renormalise=renormalise)
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length, 3, seed=1), draw(1, 1, length, 2, seed=2)
    got = mechanism(q, k, v).values[0].tolist()

    def eighth(row: list[float]) -> list[float]:
        unit = max(abs(x) for x in row) / 127
        return [round(x / unit) * unit for x in row]

    keys, values = ([eighth(row) for row in x[0, 0].tolist()] for x in (k, v))
    for head in range(2):
        for i in range(length):
            seen = range(i + 1 if causal else length)
            query = q[0, head, i].tolist()
            odds = [math.exp(sum(a * b for a, b in zip(query, keys[j], strict=True)) / math.sqrt(3)) for j in seen]
            weights = [odd / sum(odds) for odd in odds]
            step = max(weights) / (2**bits - 1)
            counts = [round(weight / step) for weight in weights]
            assert max(counts) == 2**bits - 1
            total = sum(counts) * step if renormalise else 1.0
            for c in range(2):
                expected = sum(n * step * values[j][c] for n, j in zip(counts, seen, strict=True)) / total
                assert got[head][i][c] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_the_bound_of_the_weights(bits: int, causal: bool) -> None:
    """|dO_c| <= (scale / 2) sum_j |v_jc| per row, and rows sum to 1 up to keys scale / 2."""
    q, k, v = inputs()
    exact = softmax(q, k, causal)
    scale = exact.amax(-1, keepdim=True) / (2**bits - 1)
    visible = torch.ones(30, 30, dtype=torch.float64).tril() if causal else torch.ones(30, 30, dtype=torch.float64)
    mechanism = build(causal, bits=bits, renormalise=False, store="float")
    error = (mechanism(q, k, v).values - exact @ v).abs()
    bound = scale / 2 * (visible @ v.abs())
    assert (error <= bound + 1e-12).all()
    assert (error / bound).max() > 0.1  # a bound that nothing comes near would prove nothing
    off = (mechanism(q, k, torch.ones_like(v)).values - 1).abs()
    limit = scale / 2 * visible.sum(-1, keepdim=True)
    assert (off <= limit + 1e-12).all()
    assert (off / limit).max() > 0.1
    whole = build(causal, bits=bits, store="float")
    torch.testing.assert_close(whole(q, k, torch.ones_like(v)).values, torch.ones_like(v), rtol=0, atol=1e-12)
    totals = (torch.round(exact / scale) * scale).sum(-1, keepdim=True)
    centred = (v[:, :, None] - (exact @ v)[:, :, :, None]).abs() * visible[..., None]
    assert ((whole(q, k, v).values - exact @ v).abs() <= scale / 2 * centred.sum(3) / totals + 1e-12).all()


def test_eight_more_bits_divide_the_error_by_256() -> None:
    q, k, v = inputs(length=80)
    exact = softmax(q, k) @ v
    errors = [
        (build(bits=bits, renormalise=False, store="float")(q, k, v).values - exact).square().mean().sqrt()
        for bits in (8, 16)
    ]
    assert float(errors[0] / errors[1]) == pytest.approx(65535 / 255, rel=0.1)


def test_rounding_again_changes_nothing() -> None:
    """A sequence of one token returns its rounded value; rounded weights as logits return themselves."""
    v = inputs(length=1, batch=50)[2]
    once = build()(v, v, v).values
    assert (once - v).abs().max() > 1e-3
    torch.testing.assert_close(build()(v, v, once).values, once, rtol=0, atol=1e-15)
    q, k, _ = inputs()
    mechanism = build(bits=5, store="float")
    weights = regard.weights(mechanism, q, k)
    again = regard.weights(mechanism, 0 * q, k, bias=regard.ScoreBias(table=weights.log()))
    assert (weights - softmax(q, k)).abs().max() > 1e-3
    torch.testing.assert_close(again, weights, rtol=0, atol=1e-14)


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("store", ["int8", "float"])
def test_gradients_pass_straight_through(store: str, renormalise: bool) -> None:
    """Even at 2 bits: those of exact softmax for the weights, taken at the keys and values that are used."""
    leaves = [x.requires_grad_() for x in inputs()]
    mechanism = build(True, bits=2, renormalise=renormalise, store=store)
    way = draw(2, 2, 30, 4, seed=9)
    got = torch.autograd.grad((mechanism(*leaves).values * way).sum(), leaves)
    used = [leaves[0].detach(), *(rounded(x.detach())[0] if store == "int8" else x.detach() for x in leaves[1:])]
    smooth = [x.requires_grad_() for x in used]
    wanted = torch.autograd.grad((softmax(smooth[0], smooth[1], True) @ smooth[2] * way).sum(), smooth)
    for one, other in zip(got[:2], wanted[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    found = regard.weights(build(True, bits=2, renormalise=renormalise, store="float"), used[0], used[1])
    torch.testing.assert_close(got[2], found.mT @ way, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 1.0, 5.0])
def test_the_bound_of_the_state_holds_while_decoding(scale: float) -> None:
    """tanh(E_i / 2) (max v - min v) + max u^v / 2, E_i = |q_i|_1 max u^k / (2 sqrt(d)), over the visible keys."""
    q, k, v = inputs(length=40, scale=scale)
    mechanism = build(True, bits=16, renormalise=False)
    state, pieces = mechanism.initial_state(2, dtype=torch.float64), []
    with torch.no_grad():
        for at in range(40):
            found = mechanism(*(x[:, :, at : at + 1] for x in (q, k, v)), state=state)
            state, _ = found.state, pieces.append(found.values)
    error = (torch.cat(pieces, 2) - softmax(q, k, True) @ v).abs()
    (_, key_unit), (kept, value_unit) = rounded(k), rounded(v)
    logit = q.abs().sum(-1, keepdim=True) * key_unit.cummax(2).values / (2 * math.sqrt(4))
    spread = v.cummax(2).values - v.cummin(2).values
    bound = torch.tanh(logit / 2) * spread + value_unit.cummax(2).values / 2
    weights_too = softmax(q, rounded(k)[0], True).amax(-1, keepdim=True) / 65535 / 2 * kept.abs().cumsum(2)
    assert (error <= bound + weights_too + 1e-12).all()
    assert (error / bound).max() > 0.1
    assert (error.max() / v.abs().max()) > 1e-3  # something was rounded


def test_the_logit_bound_behind_it() -> None:
    q, k, _ = inputs(length=40, scale=3.0)
    kept, unit = rounded(k)
    error = (q @ (kept - k).mT).abs() / 2
    bound = q.abs().sum(-1, keepdim=True) * unit.mT / (2 * 2)
    assert (error <= bound + 1e-12).all()
    assert (error / bound).max() > 0.5


def test_one_byte_per_number() -> None:
    heads = regard.Heads(count=4, key_dim=64, value_dim=32, kv_count=2, causal=True)
    mechanism = regard.build("quantized", heads).eval()
    q, k, v = (draw(3, count, 9, width).float() for count, width in ((4, 64), (2, 64), (2, 32)))
    with torch.no_grad():
        state = mechanism(q, k, v, state=mechanism.initial_state(3, dtype=torch.float32)).state
    assert {name: x.dtype for name, x in state.tensors().items()} == {
        "k": torch.int8,
        "v": torch.int8,
        "k_unit": torch.float32,
        "v_unit": torch.float32,
    }
    assert state.nbytes == mechanism.state_nbytes(3, 9, torch.float32) == 3 * 9 * 2 * (64 + 32 + 2 * 4)
    softmax_bytes = regard.build("softmax", heads).state_nbytes(3, 9, torch.float32)
    assert state.nbytes / softmax_bytes == pytest.approx(1 / 4 + 2 / 96)
    half = mechanism.state_nbytes(3, 9, torch.bfloat16)
    assert half == state.nbytes  # units stay in float32


def test_gradients_pass_a_state_and_decoding_goes_on_from_it() -> None:
    """Where gradients are recorded the state keeps numbers; the outputs are the same as without."""
    q, k, v = (x.requires_grad_() for x in inputs(length=12))
    mechanism = build(True)
    first = mechanism(*(x[:, :, :7] for x in (q, k, v)), state=mechanism.initial_state(2, dtype=torch.float64))
    second = mechanism(*(x[:, :, 7:9] for x in (q, k, v)), state=first.state)
    assert second.state.view()["k"].dtype == torch.float64
    with torch.no_grad():
        third = mechanism(*(x[:, :, 9:] for x in (q, k, v)), state=second.state.detach())
        whole = mechanism(q, k, v).values
    together = torch.cat([first.values, second.values, third.values], 2)
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(second.values.sum(), k)
    assert grad[:, :, :7].abs().max() > 0
    with torch.no_grad():
        narrow = mechanism(*(x[:, :, :7] for x in (q, k, v)), state=mechanism.initial_state(2, dtype=torch.float64))
    assert narrow.state.view()["k"].dtype == torch.int8
    late = mechanism(*(x[:, :, 7:] for x in (q, k, v)), state=narrow.state)
    torch.testing.assert_close(late.values, whole[:, :, 7:], rtol=0, atol=1e-12)


def test_it_is_the_definition_in_float32_with_its_choices_replayed() -> None:
    """One flip of a weight by a step would be 4e-3: with the same codes the rest is float32 accuracy."""
    q, k, v = (x.float() for x in inputs(length=100))
    mechanism = build(True).float()
    made = mechanism.decisions(q, k)
    assert made[1].max() == 255
    expected = mechanism.definition(q.double(), k.double(), v.double(), decisions=made)
    torch.testing.assert_close(mechanism(q, k, v).values.double(), expected, rtol=0, atol=4e-6)


def test_refusals() -> None:
    for bits, allowed in ((0, "greater than or equal to 1"), (17, "less than or equal to 16")):
        with pytest.raises(ConfigError, match=f"bits={bits} is not valid: .* {allowed}"):
            build(bits=bits)
    with pytest.raises(ConfigError, match="store='int4' is not valid: did you mean 'int8'"):
        build(store="int4")
