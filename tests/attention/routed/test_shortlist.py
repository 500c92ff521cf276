"""shortlist: literal lists, softmax when the list holds every key, its score, its state, its memory."""

import math

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, build
from regard.testing.counting import count


def draw(n: int, m: int | None = None, *, heads: int = 2, kv_heads: int = 2, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, n, 4), (kv_heads, m or n, 4), (kv_heads, m or n, 3))
    return tuple(torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def phi(x: list[float]) -> list[float]:
    return [y + 1 if y > 0 else math.exp(y) for y in x]


@pytest.mark.parametrize("causal", [True, False])
def test_double_loop(causal: bool) -> None:
    """The keys of the largest phi(q) . phi(k) among those seen, and their softmax of q . k / sqrt(4)."""
    heads = Heads(count=1, key_dim=4, value_dim=3, causal=causal)
    for n in range(1, 41):
        size = (1, 2, 3, 7, 30)[n % 5]
        q, k, v = (x[:1, :1] for x in draw(n, seed=n))
        found = build(f"shortlist(num_keys={size})", heads)(q, k, v)
        keys, expected = k[0, 0].tolist(), []
        for i, query in enumerate(q[0, 0].tolist()):
            seen = range(i + 1 if causal else n)
            best = sorted(seen, key=lambda j: -dot(phi(query), phi(keys[j])))[:size]
            weights = {j: math.exp(dot(query, keys[j]) / 2) for j in best}
            expected.append(sum(w * v[0, 0, j] for j, w in weights.items()) / sum(weights.values()))
        torch.testing.assert_close(found.values[0, 0], torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", ["linear", "projection"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_list_of_every_key_is_softmax(causal: bool, score: str) -> None:
    heads = Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=causal)
    x = draw(9 if not causal else 21, 21, heads=4)
    mask = torch.rand(2, 21, generator=torch.Generator().manual_seed(1)) > 0.4
    for key_mask in (None, mask):
        expected = build("softmax", heads)(*x, key_mask=key_mask).values
        for size in (21, 500):
            found = build("shortlist", heads, num_keys=size, score=score)(*x, key_mask=key_mask).values
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_scores() -> None:
    """Three keys; the list of one holds the largest score, which need not be the largest logit."""
    k = torch.tensor([[3.0, 0.0], [0.0, 5.0], [2.5, 2.5]], dtype=torch.float64)[None, None]
    q = torch.tensor([[1.0, -1.0]], dtype=torch.float64)[None, None]
    v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[None, None, :, None]
    heads = Heads(count=1, key_dim=2, value_dim=1)
    # phi(q) = (2, 1/e): 8.4, 4.2 and 8.3; logits: 3, -5, 0; relu(q) = (1, 0): 3, 0, 2.5
    for feature_map, key in (("elu_plus_one", 1.0), ("identity", 1.0), ("relu", 1.0)):
        assert build("shortlist", heads, num_keys=1, feature_map=feature_map)(q, k, v).values.item() == key
    # phi(q) = (2, 1): 9, 8 and 10.5; logits 3, 0, 2.5
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)[None, None]
    for feature_map, key in (("elu_plus_one", 3.0), ("identity", 1.0)):
        assert build("shortlist", heads, num_keys=1, feature_map=feature_map)(q, k, v).values.item() == key
    mechanism = build("shortlist", heads, num_keys=1, score="projection", rank=1)
    mechanism.get_buffer("projection").copy_(torch.tensor([[[0.0, 1.0]]]))
    q = torch.tensor([[1.0, -1.0]], dtype=torch.float64)[None, None]
    assert mechanism.double()(q, k, v).values.item() == 1.0  # -1 times 0, 5, 2.5


def test_the_choice_is_among_keys_seen() -> None:
    """The best key of all comes last: before it nobody knows."""
    q = torch.ones(1, 1, 6, 2, dtype=torch.float64)
    k = torch.arange(6.0, dtype=torch.float64)[None, None, :, None].expand(1, 1, 6, 2)
    v = torch.arange(6.0, dtype=torch.float64)[None, None, :, None]
    mechanism = build("shortlist(num_keys=1)", Heads(count=1, key_dim=2, value_dim=1, causal=True))
    assert mechanism(q, k, v).values.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    hidden = torch.tensor([[True, True, False, True, False, True]])
    assert mechanism(q, k, v, key_mask=hidden).values.flatten().tolist() == [0.0, 1.0, 1.0, 3.0, 3.0, 5.0]


def test_float32_choices_survive_any_cut() -> None:
    """Close scores, in float32: prefill, pieces and single tokens list the same keys."""
    heads = Heads(count=2, key_dim=67, value_dim=3, causal=True)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 60, width, generator=generator) for width in (67, 67, 3))
    k = k * 1e-6 + 1  # scores differ in their last digits
    for score in ("linear", "projection"):
        mechanism = build("shortlist", heads, num_keys=5, score=score)
        whole, state, out = mechanism(q, k, v).values, mechanism.initial_state(2), []
        for at in (slice(0, 37), slice(37, 38), slice(38, 59), slice(59, 60)):
            answer = mechanism(q[:, :, at], k[:, :, at], v[:, :, at], state=state)
            assert answer.state is not None
            state = answer.state
            out.append(answer.values)
        torch.testing.assert_close(torch.cat(out, 2), whole, rtol=0, atol=1e-5)


def test_nothing_of_queries_times_keys() -> None:
    heads = Heads(count=1, key_dim=4, causal=True)
    x = [torch.randn(1, 1, 2048, 4, requires_grad=True) for _ in range(3)]
    mechanism = build("shortlist(num_keys=8)", heads)
    found = count(lambda: mechanism(*x).values.sum().backward())
    assert found.largest <= 1 << 18


def test_refusals() -> None:
    heads = Heads(count=1, key_dim=4)
    with pytest.raises(ConfigError, match="num_keys=0"):
        build("shortlist(num_keys=0)", heads)
    with pytest.raises(ConfigError, match="score='best'"):
        build("shortlist(score=best)", heads)
    with pytest.raises(ConfigError, match="rank belongs to score='projection'"):
        build("shortlist(rank=4)", heads)
    with pytest.raises(ConfigError, match="feature_map belongs to score='linear'"):
        build("shortlist(score=projection, feature_map=relu)", heads)
