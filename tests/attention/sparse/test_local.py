"""local: literal key sets, its state, its options."""

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, ScoreBias, UnsupportedError, build
from regard.engines.kernels import forced
from regard.layer import AttentionLayer


def seen(values: Tensor) -> list[set[int]]:
    """The keys of each query, when logits are 0 and values are the identity: each has weight 1 / count."""
    rows = values[0, 0]
    for row in rows:
        assert ((row[row > 0] - 1 / int((row > 0).sum())).abs() < 1e-12).all()
    return [set(row.nonzero().flatten().tolist()) for row in rows]


def keys_of(spec: str, n: int, *, causal: bool) -> list[set[int]]:
    zeros = torch.zeros(1, 1, n, 4, dtype=torch.float64)
    local = build(spec, Heads(count=1, key_dim=4, value_dim=n, causal=causal))
    return seen(local(zeros, zeros, torch.eye(n, dtype=torch.float64)[None, None]).values)


@pytest.mark.parametrize(("window", "dilation"), [(0, 1), (1, 1), (3, 1), (7, 1), (50, 1), (2, 3), (3, 2), (1, 8)])
@pytest.mark.parametrize("causal", [True, False])
def test_key_sets(window: int, dilation: int, causal: bool) -> None:
    for n in range(1, 41):
        expected = []
        for i in range(n):
            keys = set()
            for t in range(-window, window + 1):
                j = i + t * dilation
                if 0 <= j < n and (not causal or j <= i):
                    keys.add(j)
            expected.append(keys)
        with forced("tiles" if n % 13 == 0 else ""):
            assert keys_of(f"local(window={window}, dilation={dilation})", n, causal=causal) == expected, n


def test_a_stack_reaches_layers_times_window() -> None:
    """And nothing further: by the gradient of the middle output, in three layers with residuals."""
    layers = [AttentionLayer(8, "local(window=2)", heads=2, seed=seed).double() for seed in range(3)]
    x = torch.randn(1, 21, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    hidden = x
    for layer in layers:
        hidden = hidden + layer(hidden).hidden
    (gradient,) = torch.autograd.grad(hidden[0, 10].sum(), x)
    assert gradient[0].any(-1).nonzero().flatten().tolist() == list(range(4, 17))


def test_golden_values() -> None:
    """Logits 0, 1, 2, 3 at unit scale: softmax over two or three neighbours, by hand."""
    q = torch.ones(1, 1, 4, 1, dtype=torch.float64)
    k = torch.arange(4, dtype=torch.float64)[None, None, :, None]
    v = torch.tensor([10.0, 20.0, 40.0, 80.0], dtype=torch.float64)[None, None, :, None]
    e = 2.718281828459045
    causal = build("local(window=1, scale=1.0)", Heads(count=1, key_dim=1, causal=True))
    expected = [10.0, (10 + 20 * e) / (1 + e), (20 + 40 * e) / (1 + e), (40 + 80 * e) / (1 + e)]
    found = causal(q, k, v).values.flatten()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    both = build("local(window=1, scale=1.0)", Heads(count=1, key_dim=1))
    middle = (10 + 20 * e + 40 * e * e) / (1 + e + e * e)
    assert abs(float(both(q, k, v).values[0, 0, 1, 0]) - middle) < 1e-12


def draw(n: int, heads: int = 4, kv_heads: int = 2, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, h, n, 8, generator=generator, dtype=dtype) for h in (heads, kv_heads, kv_heads))


def test_the_ring_keeps_what_a_later_query_sees() -> None:
    local = build("local(window=5, dilation=2)", Heads(count=4, key_dim=8, kv_count=2, causal=True))
    for n in (3, 9, 10, 11, 60):
        q, k, v = draw(n)
        state = local(q, k, v, state=local.initial_state(2, dtype=torch.float64)).state
        kept = min(n, 10)
        assert torch.equal(state.tensors()["k"], k[:, :, n - kept :])
        assert state.nbytes == 2 * 2 * kept * (8 + 8) * 8


def test_a_long_prefill_leaves_a_short_tape() -> None:
    local = build("local(window=16)", Heads(count=4, key_dim=8, kv_count=2, causal=True))
    with torch.no_grad():
        state = local(*draw(3000), state=local.initial_state(2, dtype=torch.float64)).state
        for _ in range(200):
            state = local(*draw(1), state=state).state
    assert state.tape.capacity <= 4 * 64
    assert state.length == 3200


def test_reach_is_tight() -> None:
    causal = build("local(window=256)", Heads(count=1, key_dim=4, causal=True))
    assert causal.bias_distances(4096, 4096) == (0, 256)
    assert causal.bias_distances(10, 10) == (0, 9)
    both = build("local(window=3, dilation=2)", Heads(count=1, key_dim=4))
    assert both.bias_distances(100, 100) == (-6, 6)


def test_biases_by_distance_and_by_table_agree_on_a_state() -> None:
    local = build("local(window=6)", Heads(count=4, key_dim=8, kv_count=2, causal=True))
    q, k, v = draw(90)
    curve = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = local(q, k, v, bias=ScoreBias(high=6, curve=curve)).values
    distance = torch.arange(90)[:, None] - torch.arange(90)
    table = curve[:, (6 - distance).clamp(0, 6)][None]
    torch.testing.assert_close(local(q, k, v, bias=ScoreBias(table=table)).values, whole, rtol=0, atol=1e-10)
    state, at = local.initial_state(2, dtype=torch.float64), 0
    for count in (30, 1, 5, 54):
        piece = slice(at, at + count)
        bias = ScoreBias(table=table[:, :, piece, : at + count])
        answer = local(q[:, :, piece], k[:, :, piece], v[:, :, piece], bias=bias, state=state)
        torch.testing.assert_close(answer.values, whole[:, :, piece], rtol=0, atol=1e-10)
        at, state = at + count, answer.state


def test_refusals() -> None:
    heads = Heads(count=1, key_dim=4, causal=True)
    for spec in ("local(window=-1)", "local(dilation=0)", "local(impl=fast)"):
        with pytest.raises(ConfigError):
            build(spec, heads)
    both = build("local(window=2)", Heads(count=1, key_dim=4))
    with pytest.raises(UnsupportedError, match="same positions"):
        both(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4))
