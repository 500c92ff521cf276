"""Rounded weights and 8-bit keys and values, against whole numbers counted one by one and the stated bounds."""

import math

import pytest
import torch

import regard
from regard.core.errors import ConfigError


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


def test_refusals() -> None:
    for bits, allowed in ((0, "greater than or equal to 1"), (17, "less than or equal to 16")):
        with pytest.raises(ConfigError, match=f"bits={bits} is not valid: .* {allowed}"):
            build(bits=bits)
    with pytest.raises(ConfigError, match="store='int4' is not valid: did you mean 'int8'"):
        build(store="int4")


def eight_bits(rows: list[list[float]], at: int, last: int, size: int) -> list[float]:
    """Row `at`, each channel in units of its block if that is complete before `last`; written out."""
    first = at // size * size
    if first + size > last:
        return rows[at]
    units = [max(abs(row[c]) for row in rows[first : first + size]) / 127 for c in range(len(rows[at]))]
    return [round(x / unit) * unit for x, unit in zip(rows[at], units, strict=True)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_one_number_at_a_time_by_channel(size: int, causal: bool) -> None:
    length = 11
    options = {"units": "channel", "block_size": size, "bits": 8}
    mechanism = build(causal, key_dim=3, value_dim=2, kv_count=1, **options)
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length, 3, seed=1), draw(1, 1, length, 2, seed=2)
    k[..., 0] *= 50  # a channel whose unit no other one may take
    got = mechanism(q, k, v).values[0].tolist()
    for head in range(2):
        for i in range(length):
            seen, last = range(i + 1 if causal else length), i if causal else length
            keys, values = ([eight_bits(x[0, 0].tolist(), j, last, size) for j in seen] for x in (k, v))
            query = q[0, head, i].tolist()
            odds = [math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(3)) for key in keys]
            step = max(odds) / 255
            counts = [round(odd / step) for odd in odds]
            for c in range(2):
                expected = sum(n * value[c] for n, value in zip(counts, values, strict=True)) / sum(counts)
                assert got[head][i][c] == pytest.approx(expected, abs=1e-12)


def test_a_known_block() -> None:
    """Two slots make a block: channel 0 in units of 127 / 127, channel 1 of 2.54 / 127; the third is as it is."""
    v = torch.tensor([[127.0, 1.013], [0.6, 2.54], [0.6, 1.013]], dtype=torch.float64)[None, None]
    flat = torch.zeros_like(v)
    mechanism = regard.build("quantized(units=channel, block_size=2)", regard.Heads(count=1, key_dim=2, causal=True))
    got = mechanism.double()(flat, flat, v).values[0, 0].tolist()
    assert got[0] == pytest.approx([127.0, 1.013])
    assert got[1] == pytest.approx([(127.0 + 0.6) / 2, (1.013 + 2.54) / 2])  # its own block, exactly
    assert got[2] == pytest.approx([(127.0 + 1.0 + 0.6) / 3, (1.02 + 2.54 + 1.013) / 3])


def test_a_channel_that_is_large_takes_no_digits() -> None:
    """One channel of the keys is 100 times the others, as trained models have them, and queries hardly read it."""
    q, k, v = (draw(1, 2, 1024, 16, seed=s) for s in range(3))
    k[..., 3] *= 100
    q[..., 3] *= 0.01
    exact = softmax(q, k, True) @ v
    size = {"key_dim": 16, "value_dim": 16}
    errors = [
        float((build(True, bits=16, units=units, **size)(q, k, v).values - exact).norm() / exact.norm())
        for units in ("token", "channel")
    ]
    assert errors[0] > 8 * errors[1] > 1e-3, errors


def test_decoding_goes_on_between_recorded_and_coded_blocks() -> None:
    """Pieces with and without gradients, cut inside of blocks, are the whole; old states stay usable."""
    q, k, v = (x.requires_grad_() for x in inputs(length=19))
    mechanism, states, found = build(True, units="channel", block_size=4), [], []
    states.append(mechanism.initial_state(2, dtype=torch.float64))
    for cut, recorded in ((slice(0, 6), False), (slice(6, 11), True), (slice(11, 15), True), (slice(15, 19), False)):
        with torch.set_grad_enabled(recorded):
            got = mechanism(*(x[:, :, cut] for x in (q, k, v)), state=states[-1])
        states.append(got.state)
        found.append(got.values)
    whole = mechanism(q, k, v).values
    torch.testing.assert_close(torch.cat(found, 2), whole, rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(found[2].sum(), k)
    assert (grad[:, :, 6:15].abs().amax(3) > 0).all()
    assert not grad[:, :, :6].any()  # they came without
    assert states[1].view()["k"].dtype == torch.int8
    again = mechanism(*(x[:, :, 6:8] for x in (q, k, v)), state=states[1]).values
    torch.testing.assert_close(again, whole[:, :, 6:8], rtol=0, atol=1e-12)


def test_refusals_by_channel() -> None:
    with pytest.raises(ConfigError, match="units='channel' are those of store='int8'"):
        build(units="channel", store="float")
    with pytest.raises(ConfigError, match="block_size=1 is not valid"):
        build(units="channel", block_size=1)
    q, k, v = inputs(length=6)
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[0, 0] = False
    with pytest.raises(regard.UnsupportedError, match="does not support left padding"):
        build(True, units="channel")(q, k, v, key_mask=keep)


def test_the_bound_of_the_state_by_channel() -> None:
    """tanh(E_i / 2) (max v - min v) + max u^v_c / 2, E_i = sum_c |q_ic| max u^k_c / (2 sqrt(d)), over all blocks."""
    q, k, v = inputs(length=40)
    k[..., 1] *= 20
    mechanism = build(True, bits=16, renormalise=False, units="channel", block_size=8)
    error = (mechanism(q, k, v).values - softmax(q, k, True) @ v).abs()
    key_unit, value_unit = (x.unflatten(2, (5, 8)).abs().amax((2, 3), keepdim=True)[:, :, 0] / 127 for x in (k, v))
    logit = (q.abs() * key_unit).sum(-1, keepdim=True) / (2 * math.sqrt(4))
    spread = v.cummax(2).values - v.cummin(2).values
    bound = torch.tanh(logit / 2) * spread + value_unit / 2
    weights_too = softmax(q, k, True).amax(-1, keepdim=True) / 65535 * v.abs().cumsum(2)
    assert (error <= bound + weights_too).all()
    assert (error / bound).max() > 0.05
    assert not error[:, :, :8].gt(weights_too[:, :, :8]).any()  # the first block is read as it is
