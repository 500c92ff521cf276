"""`performer` against double loops written from SPEC F3, and its laws: causality, estimates, redrawing."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads

MAPS = ("positive", "hyperbolic", "trigonometric", "relu")


def features(name: str, x: list[float], rows: list[list[float]]) -> list[float]:
    """Unstabilised, number by number."""
    dots = [sum(a * b for a, b in zip(w, x, strict=True)) for w in rows]
    half = sum(a * a for a in x) / 2
    match name:
        case "positive":
            return [math.exp(y - half) for y in dots]
        case "hyperbolic":
            return [math.exp(y - half) for y in (*dots, *(-y for y in dots))]
        case "trigonometric":
            return [math.exp(half) * y for y in (*map(math.sin, dots), *map(math.cos, dots))]
    assert name == "relu"
    return [max(y, 0.0) + 1e-3 for y in dots]


def loops(q: Tensor, k: Tensor, v: Tensor, w: Tensor, name: str, causal: bool, mask: Tensor | None) -> Tensor:
    batch, heads, queries, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    past = keys - queries if causal else 0
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            rows = w[h // group].tolist()
            fk = [features(name, (k[b, h // group, j] / dim**0.25).tolist(), rows) for j in range(keys)]
            for i in range(queries):
                fq = features(name, (q[b, h, i] / dim**0.25).tolist(), rows)
                seen = [j for j in range(keys) if not (causal and j > i + past) and (mask is None or mask[b, j])]
                weights = [sum(x * y for x, y in zip(fq, fk[j], strict=True)) for j in seen]
                for weight, j in zip(weights, seen, strict=True):
                    out[b, h, i] += weight / sum(weights) * v[b, h // group, j]
    return out


def draw(queries: int = 8, keys: int = 8, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, h, n, 4, generator=g).double() for h, n in ((4, queries), (2, keys), (2, keys)))
    return scale * q, scale * k, v


def build(causal: bool = True, *, dim: int = 4, seed: int = 0, **options: object):
    return regard.build(
        "performer", Heads(count=4, kv_count=2, key_dim=dim, causal=causal, seed=seed), **options
    ).eval()


@pytest.mark.parametrize("name", MAPS)
def test_equals_the_double_loop_without_stabilisers(name: str) -> None:
    mask = torch.rand(2, 8, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[0, :2] = False
    for causal in (True, False):
        for key_mask in (None, mask):
            mechanism = build(causal, feature_map=name, num_features=12).double()
            q, k, v = draw()
            expected = loops(q, k, v, mechanism.projection, name, causal, key_mask)
            assert (mechanism(q, k, v, key_mask=key_mask).values - expected).abs().max() < 1e-10
            assert (mechanism.definition(q, k, v, key_mask=key_mask) - expected).abs().max() < 1e-10
    q, k, v = draw(3, 8)
    mechanism = build(feature_map=name, num_features=12).double()
    expected = loops(q, k, v, mechanism.projection, name, True, None)
    assert (mechanism(q, k, v).values - expected).abs().max() < 1e-10


def test_a_query_of_0_averages_by_the_norms_and_one_key_is_returned_exactly() -> None:
    """q = 0 has phi(q) constant; with one key, or equal keys, the answer is exact whatever the features."""
    mechanism = build(num_features=16)
    q, k, v = (x.float() for x in draw(1, 1))
    assert torch.allclose(mechanism(q, k, v).values, v.repeat_interleave(2, 1), rtol=1e-6, atol=0)
    q, k, v = (x.float() for x in draw(9, 9))
    same = k[:, :, :1].expand_as(k)
    mean = v.cumsum(2) / torch.arange(1, 10)[:, None]
    assert (mechanism(0 * q, same, v).values - mean.repeat_interleave(2, 1)).abs().max() < 2e-6


def train_once(mechanism, x: Tensor) -> Tensor:
    return mechanism(x, x[:, :2], x[:, :2]).values


def test_redrawing_every_interval_in_training_only() -> None:
    mechanism = build(num_features=8, redraw_interval=3)
    x = torch.randn(1, 4, 5, 4)
    first = mechanism.projection.clone()
    for _ in range(7):
        train_once(mechanism, x)
    assert mechanism.calls == 0
    assert torch.equal(mechanism.projection, first)
    mechanism.train()
    seen = []
    for _ in range(7):
        train_once(mechanism, x)
        seen.append(mechanism.projection.clone())
    assert [torch.equal(a, b) for a, b in zip([first, *seen], seen, strict=False)] == [True, True, False] * 2 + [True]
    assert mechanism.calls == 7
    again = build(num_features=8, redraw_interval=3).train()
    for _ in range(4):
        train_once(again, x)
    resumed = build(num_features=8, redraw_interval=3).train()
    resumed.load_state_dict(again.state_dict())
    for _ in range(3):
        train_once(resumed, x)
    assert torch.equal(resumed.projection, mechanism.projection)
    never = build(num_features=8, redraw_interval=None).train()
    train_once(never, x)
    assert never.calls == 0


def test_a_redraw_leaves_earlier_graphs_alone() -> None:
    mechanism = build(num_features=8, redraw_interval=1).train()
    x = torch.randn(1, 4, 6, 4, requires_grad=True)
    outs = [train_once(mechanism, x) for _ in range(3)]
    assert not torch.equal(outs[0], outs[1])
    sum(out.sum() for out in outs).backward()
    assert x.grad.isfinite().all()


def test_training_compiles_whole_with_redraws() -> None:
    torch._dynamo.reset()
    eager, other = (build(num_features=8, redraw_interval=2).train() for _ in range(2))
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for _ in range(5):
        x = torch.randn(1, 4, 70, 4)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        for mechanism, y in zip((eager, compiled), inputs, strict=True):
            train_once(mechanism, y).square().sum().backward()
        assert torch.equal(*(y.grad for y in inputs))
    assert other.calls == 5
    assert torch.equal(other.projection, eager.projection)


def test_default_number_of_features() -> None:
    """dim log(dim), at least dim, even."""
    for dim, expected in ((64, 268), (2, 2), (1, 2), (8, 18)):
        heads = Heads(count=1, key_dim=dim)
        for name in MAPS:
            mechanism = regard.build("performer", heads, feature_map=name)
            assert mechanism.num_features == mechanism.features == expected
            rows = expected if name in ("positive", "relu") else expected // 2
            assert mechanism.projection.shape == (1, rows, dim)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "softmax"}, "option feature_map='softmax' is not valid: valid: hyperbolic, positive, "),
        ({"norms": "unit"}, "option norms='unit' is not valid: valid: chi, sqrt"),
        ({"impl": "quadratic"}, "option impl='quadratic' is not valid: valid: auto, reference"),
        ({"num_features": 7, "feature_map": "hyperbolic"}, "multiple"),
        ({"num_features": 0}, "num_features=0 is not valid: Input should be greater than or equal to 1"),
        ({"redraw_interval": 0}, "redraw_interval=0 is not valid: Input should be greater than or equal to 1"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    from regard.attention.kernel.performer import Performer

    with pytest.raises(ConfigError, match=message):
        Performer(Heads(count=1, key_dim=4), **options)
