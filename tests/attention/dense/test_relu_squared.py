"""The activations of gated attention units: loops, normalisers, and the place where the two meet."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def activation(name: str, x: float) -> float:
    if name == "relu_squared":
        return max(x, 0.0) ** 2
    mean, deviation = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
    return 0.5 * (1 + math.erf((x - mean) / (deviation * math.sqrt(2))))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normaliser", ["const", "visible"])
@pytest.mark.parametrize("name", ["relu_squared", "laplace"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 8), (13, 13)])
def test_pairs_one_at_a_time(queries: int, keys: int, name: str, normaliser: str, causal: bool, biased: bool) -> None:
    q, k, v = draw(1, 2, queries, 4), draw(1, 2, keys, 4, seed=1), draw(1, 2, keys, 3, seed=2)
    keep = [j % 4 != 2 for j in range(keys)]
    table = draw(1, 2, queries, keys, seed=3) if biased else torch.zeros(1, 2, queries, keys).double()
    mechanism = regard.build(
        "relu_squared",
        regard.Heads(count=2, key_dim=4, value_dim=3, causal=causal),
        activation=name,
        normaliser=normaliser,
        constant=3.0 if normaliser == "const" else None,
    )
    bias = ScoreBias(table=table) if biased else None
    for mask in (None, keep):
        got = mechanism(q, k, v, key_mask=None if mask is None else torch.tensor([mask]), bias=bias).values[0]
        for head in range(2):
            for i in range(queries):
                last = i + keys - queries if causal else keys - 1
                seen = [j for j in range(last + 1) if mask is None or mask[j]]
                divisor = {"const": 3.0, "visible": 2.0}[normaliser]
                expected = torch.zeros(3, dtype=torch.float64)
                for j in seen:
                    logit = (q[0, head, i] @ k[0, head, j]).item() / divisor + table[0, head, i, j].item()
                    weight = activation(name, logit) / (len(seen) if normaliser == "visible" else 1)
                    expected = expected + weight * v[0, head, j]
                torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q, v = torch.ones(1, 1, 3, 4, dtype=torch.float64), torch.ones(1, 1, 3, 4, dtype=torch.float64)

    def rows(spec: str) -> list[float]:
        return regard.attend(q, q, v, spec, causal=True)[0, 0, :, 0].tolist()

    assert rows("relu_squared(constant=2.0)") == pytest.approx([4.0, 8.0, 12.0], abs=1e-12)  # (4/2)^2 per key
    assert rows("relu_squared(normaliser=visible)") == pytest.approx([4.0, 4.0, 4.0], abs=1e-12)
    assert rows("relu_squared") == pytest.approx([count * (4 / 512) ** 2 for count in (1, 2, 3)], abs=1e-15)
    built = regard.build("relu_squared", regard.Heads(count=1, key_dim=4, max_length=8))
    assert built(q, q, v).values[0, 0, 0, 0].item() == pytest.approx(3 * (4 / 8) ** 2, abs=1e-12)


def response(name: str, x: torch.Tensor) -> torch.Tensor:
    """f(x), through attention on one key of one component."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    heads = regard.Heads(count=1, key_dim=1)
    mechanism = regard.build("relu_squared", heads, activation=name, constant=1.0)
    return mechanism(x.reshape(1, 1, -1, 1), one, one).values.flatten()


def test_laplace_meets_relu_squared_in_value_and_slope() -> None:
    for name in ("relu_squared", "laplace"):
        x = torch.tensor([math.sqrt(0.5)], dtype=torch.float64, requires_grad=True)
        value = response(name, x)
        (slope,) = torch.autograd.grad(value.sum(), x)
        assert value.item() == pytest.approx(0.5, abs=1e-12)
        assert slope.item() == pytest.approx(math.sqrt(2), abs=1e-12)


def test_laplace_is_bounded_and_relu_squared_is_not() -> None:
    x = torch.linspace(-40, 40, 81, dtype=torch.float64)
    bounded, free = response("laplace", x), response("relu_squared", x)
    assert bounded.min() >= 0
    assert bounded.max() <= 1
    assert bool((bounded.diff() >= 0).all())
    assert bounded[-1].item() == pytest.approx(1.0, abs=1e-12)
    assert free[-1].item() == pytest.approx(1600.0, abs=1e-9)
    assert not free[:41].any()


def test_hidden_keys_weigh_nothing_where_a_logit_of_zero_weighs_something() -> None:
    """A mask multiplies by 0; it is no logit of 0, which laplace maps to 0.006."""
    q = torch.zeros(1, 1, 4, 2, dtype=torch.float64)
    keep = torch.tensor([[True, False, False, True]])
    mechanism = regard.build("relu_squared(activation=laplace)", regard.Heads(count=1, key_dim=2, causal=True))
    rows = regard.weights(mechanism, q, q, key_mask=keep)[0, 0]
    least = activation("laplace", 0.0)
    assert least > 0.005
    expected = [[least, 0, 0, 0]] * 3 + [[least, 0, 0, least]]
    torch.testing.assert_close(rows, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_queries_and_keys_of_zero_say_nothing() -> None:
    q, v = torch.zeros(1, 1, 5, 4), draw(1, 1, 5, 4).float()
    for spec in ("relu_squared", "relu_squared(normaliser=visible)"):
        assert not regard.attend(q, q, v, spec).any()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("relu_squared(normaliser=seq_len)", "normaliser"),
        ("relu_squared(normaliser=visible, constant=2.0)", "constant"),
        ("relu_squared(constant=0.0)", "greater than 0"),
        ("relu_squared(normaliser=mean)", "normaliser"),
        ("relu_squared(activation=gelu)", "activation"),
    ],
)
def test_bad_options_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(regard.ConfigError, match=problem):
        regard.build(spec, regard.Heads(count=1, key_dim=2))
