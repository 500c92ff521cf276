"""local_linear: double loops, the two mechanisms that it joins, its state, its options."""

import math

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, UnsupportedError, build


def draw(n: int, dim: int = 4, value: int = 3, heads: int = 2, kv_heads: int = 2, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, value))
    return tuple(torch.randn(2, h, n, w, generator=generator, dtype=torch.float64) for h, w in shapes)


def phi(x: list[float]) -> list[float]:
    return [y + 1 if y > 0 else math.exp(y) for y in x]


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def by_hand(q: Tensor, k: Tensor, v: Tensor, window: int, *, causal: bool, gate: float | None = None) -> list[float]:
    """One head with values of width 1, pair by pair."""
    out = []
    fk = [phi(key) for key in k.tolist()]
    for i, query in enumerate(q.tolist()):
        near = far = of_near = of_far = 0.0
        fq = phi(query)
        for j, (key, value) in enumerate(zip(k.tolist(), v.flatten().tolist(), strict=True)):
            if causal and j > i:
                continue
            if window > 0 and abs(i - j) <= window:
                weight = math.exp(dot(query, key) / math.sqrt(len(query)))
                near, of_near = near + weight, of_near + weight * value
            else:
                weight = dot(fq, fk[j])
                far, of_far = far + weight, of_far + weight * value
        if gate is None:
            out.append((of_near + of_far) / (near + far))
        elif near and far:
            out.append(gate * of_near / near + (1 - gate) * of_far / far)
        else:
            out.append((of_near + of_far) / (near + far))
    return out


@pytest.mark.parametrize("combine", ["share", "gate"])
@pytest.mark.parametrize("causal", [True, False])
def test_double_loop(causal: bool, combine: str) -> None:
    heads = Heads(count=1, key_dim=2, value_dim=1, causal=causal)
    for n in range(1, 41):
        window = (0, 1, 2, 5, 11)[n % 5]
        q, k, v = (x[:1, :1] for x in draw(n, 2, 1, seed=n))
        mechanism = build("local_linear", heads, window=window, combine=combine).double()
        expected = by_hand(
            q[0, 0], k[0, 0], v[0, 0], window, causal=causal, gate=0.5 if combine == "gate" else None
        )  # a gate starts at sigmoid(0)
        found = mechanism(q, k, v).values.flatten()
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("combine", ["share", "gate"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_over_everything_is_softmax_and_none_is_linear(causal: bool, combine: str) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=causal)
    q, k, v = draw(29, heads=4)
    mask = torch.rand(2, 29, generator=torch.Generator().manual_seed(1)) > 0.3
    for key_mask in (None, mask):
        for window, other in ((28, "softmax"), (1000, "softmax"), (0, "linear")):
            mechanism = build("local_linear", heads, window=window, combine=combine).double()
            expected = build(other, heads)(q, k, v, key_mask=key_mask).values
            found = mechanism(q, k, v, key_mask=key_mask).values
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_an_open_gate_is_the_window_and_a_closed_one_the_far_field(causal: bool) -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, causal=causal)
    q, k, v = draw(31)
    mechanism = build("local_linear(window=3, combine=gate)", heads).double()
    with torch.no_grad():
        mechanism.get_parameter("gate_bias").fill_(1000.0)
        torch.testing.assert_close(
            mechanism(q, k, v).values, build("local(window=3)", heads)(q, k, v).values, rtol=0, atol=1e-12
        )
        mechanism.get_parameter("gate_bias").fill_(-1000.0)
        for row in range(4 if causal else 0, 31):
            far = [j for j in range(31) if abs(row - j) > 3 and (j < row or not causal)]
            alone = build("linear", Heads(count=2, key_dim=4, value_dim=3))
            expected = alone(q[:, :, row : row + 1], k[:, :, far], v[:, :, far]).values
            found = mechanism(q, k, v).values[:, :, row : row + 1]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_gate_reads_the_query() -> None:
    """g = sigmoid(a . q + b): with near values 1 and far values 0 the output is the gate."""
    mechanism = build("local_linear(window=1, combine=gate)", Heads(count=1, key_dim=2, value_dim=1, causal=True))
    with torch.no_grad():
        mechanism.get_parameter("gate_weight").copy_(torch.tensor([[0.5, -2.0]]))
        mechanism.get_parameter("gate_bias").fill_(0.25)
    q = torch.tensor([[1.0, 1.0], [1.0, 2.0], [3.0, 1.0], [3.0, 1.0]])[None, None]
    v = torch.tensor([0.0, 0.0, 1.0, 1.0])[None, None, :, None]
    found = mechanism(q, q, v).values[0, 0, 3, 0].item()
    assert abs(found - 1 / (1 + math.exp(-(0.5 * 3 - 2.0 + 0.25)))) < 1e-6


def test_one_normaliser_by_hand() -> None:
    """q = k = 0: near weights exp(0) = 1, far weights phi(0) . phi(0) = 2 for two channels."""
    zero = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    v = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)[None, None, :, None]
    heads = Heads(count=1, key_dim=2, value_dim=1, causal=True)
    found = build("local_linear(window=1)", heads)(zero, zero, v).values.flatten()
    expected = [8.0, 6.0, (2 * 8 + 4 + 2) / 4, (2 * (8 + 4) + 2 + 1) / 6]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("logit", [-2000.0, -90.0, 90.0, 2000.0])
def test_near_logits_beyond_the_range_of_exp(logit: float) -> None:
    """Near weights dwarf the far ones or vanish beside them, in float32, without overflow."""
    q, k = torch.full((1, 1, 8, 1), math.copysign(1.0, logit)), torch.full((1, 1, 8, 1), abs(logit))
    v = torch.arange(8.0)[None, None, :, None]
    found = build("local_linear(window=2, feature_map=sigmoid)", Heads(count=1, key_dim=1, causal=True))(q, k, v)
    near, far = 6.0, 2.0  # means of values 5..7 and 0..4
    assert abs(found.values[0, 0, 7, 0].item() - (near if logit > 0 else far)) < (1e-5 if abs(logit) > 100 else 1e-4)


@pytest.mark.parametrize("window", [0, 1, 4, 40])
def test_a_key_enters_the_sums_when_it_leaves_the_window(window: int) -> None:
    heads = Heads(count=2, key_dim=4, value_dim=3, causal=True)
    mechanism = build("local_linear", heads, window=window)
    q, k, v = draw(23)
    whole = mechanism(q, k, v).values
    state = mechanism.initial_state(2, dtype=torch.float64)
    out, at = [], 0
    for count in (1, 1, 5, 1, 14, 1):
        piece = (x[:, :, at : at + count] for x in (q, k, v))
        answer = mechanism(*piece, state=state)
        state, at = answer.state, at + count
        assert state is not None
        out.append(answer.values)
        kept = state.tensors()
        far = max(at - window, 0)
        features = torch.where(k > 0, k + 1, torch.exp(k.clamp(max=0)))[:, :, :far]
        columns = torch.cat([v, torch.ones_like(v[..., :1])], -1)[:, :, :far]
        torch.testing.assert_close(kept["sum"], features.mT @ columns, rtol=0, atol=1e-12)
        near = min(at, window)
        assert kept["real"].sum().item() == 2 * near
        torch.testing.assert_close(kept["k"][:, :, window - near :], k[:, :, at - near : at], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat(out, 2), whole, rtol=0, atol=1e-12)
    assert state.nbytes == mechanism.state_nbytes(2, 23, torch.float64)


def test_refusals() -> None:
    heads = Heads(count=1, key_dim=4)
    with pytest.raises(ConfigError, match="window=-1 is not valid: Input should be greater than or equal to 0"):
        build("local_linear(window=-1)", heads)
    with pytest.raises(ConfigError, match="feature_map='identity'"):
        build("local_linear(feature_map=identity)", heads)
    with pytest.raises(ConfigError, match="combine='sum'"):
        build("local_linear(combine=sum)", heads)
    with pytest.raises(UnsupportedError, match="same positions"):
        build("local_linear", heads)(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4))
