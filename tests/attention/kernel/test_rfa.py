"""`rfa` against double loops written from SPEC F4, and its laws: gates, signs, the pool of projections."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads, UnsupportedError


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def features(name: str, x: list[float], rows: list[list[float]], sigma: list[float]) -> list[float]:
    length = math.sqrt(sum(a * a for a in x))
    dots = [sum(w * a / length / s for w, a, s in zip(row, x, sigma, strict=True)) for row in rows]
    found = [max(y, 0.0) for y in dots] if name == "arc_cosine" else [*map(math.sin, dots), *map(math.cos, dots)]
    return [y / math.sqrt(len(rows)) for y in found]


def loops(mechanism, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, inputs: dict | None = None) -> Tensor:
    """The recurrence, one slot after another; padding has g = 1 and no key. The queries are the last positions."""
    name, causal = mechanism.feature_map, mechanism.heads.causal
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    out, group = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64), heads // k.shape[1]
    for b, h in itertools.product(range(batch), range(heads)):
        kv = h // group
        rows, sigma = mechanism.projection[kv].tolist(), mechanism.log_sigma[kv].exp().tolist()
        fq = [features(name, x, rows, sigma) for x in q[b, h].tolist()]
        s, z = torch.zeros(mechanism.num_features, v.shape[3]).double(), torch.zeros(mechanism.num_features).double()

        def read(i: int, s: Tensor = s, z: Tensor = z, b: int = b, h: int = h, fq: list = fq) -> None:
            f = torch.tensor(fq[i], dtype=torch.float64)
            total = (f @ z).item()
            out[b, h, i] = f @ s / total if total else 0.0

        for j in range(keys):
            if mask is None or mask[b, j]:
                key = torch.tensor(features(name, k[b, kv, j].tolist(), rows, sigma), dtype=torch.float64)
                g, added = 1.0, 1.0
                if inputs:
                    g = math.exp(inputs["log_gate"][b, kv, j, 0].item())
                    added = 1 - g
                s.mul_(g).add_(added * key[:, None] * v[b, kv, j])
                z.mul_(g).add_(added * key)
            if causal and j >= keys - queries:
                read(j - keys + queries)
        for i in range(0 if causal else queries):
            read(i)
    return out


def draw(queries: int = 9, keys: int = 9, seed: int = 0, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, 3))
    q, k, v = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes)
    return q, k, v


def gates(mechanism, length: int, seed: int = 1) -> dict[str, Tensor]:
    """Inputs of a mechanism: none without a gate; logs of gates from 0.02 to 0.99, drawn apart from the keys."""
    if not mechanism.gate:
        return {}
    g = torch.Generator().manual_seed(seed)
    return {"log_gate": torch.nn.functional.logsigmoid(2 * torch.randn(2, 2, length, 1, generator=g).double())}


def build(causal: bool = True, *, dim: int = 4, seed: int = 0, **options: object):
    heads = Heads(count=4, kv_count=2, key_dim=dim, value_dim=3, causal=causal, seed=seed)
    mechanism = regard.build("rfa", heads, **{"num_features": 12, **options}).eval().double()
    with torch.no_grad():
        g = torch.Generator().manual_seed(9)
        mechanism.log_sigma.add_(0.2 * torch.randn(2, dim, generator=g))
    return mechanism


OPTIONS: list[dict] = [{}, {"gate": True}, {"feature_map": "arc_cosine"}, {"gate": True, "feature_map": "arc_cosine"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_the_recurrence(options: dict) -> None:
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[0, :2] = False
    for causal in (True,) if options.get("gate") else (True, False):
        mechanism = build(causal, **options)
        for queries, key_mask in itertools.product((9, 4), (None, mask)):
            (q, k, v), inputs = draw(queries, 9), gates(mechanism, 9)
            expected = loops(mechanism, q, k, v, key_mask, inputs)
            bound = 1e-10 * max(1, expected.abs().max())
            given = {"key_mask": key_mask, "inputs": inputs}
            assert (mechanism(q, k, v, **given).values - expected).abs().max() < bound
            assert (mechanism.definition(q, k, v, **given) - expected).abs().max() < bound
    for n in range(1, 41) if options == {"gate": True} else ():
        q, k, v = (x[:1] for x in draw(n, n, seed=n))
        inputs = {"log_gate": gates(mechanism, n, seed=n)["log_gate"][:1]}
        expected = loops(mechanism, q, k, v, None, inputs)
        assert (mechanism(q, k, v, inputs=inputs).values - expected).abs().max() < 1e-10 * max(1, expected.abs().max())


def test_gates_have_their_closed_form() -> None:
    """w_ts = (1 - g_s) prod_{s < r <= t} g_r: seen with equal keys' features, where weights are the gates alone."""
    mechanism = build(gate=True)
    with torch.no_grad():
        mechanism.log_sigma.fill_(20.0)  # a kernel so wide that every weight is 1
    q, k, v = draw(70, 70)
    inputs = gates(mechanism, 70)
    g = inputs["log_gate"][..., 0].exp()
    weights = torch.zeros(2, 2, 70, 70, dtype=torch.float64)
    for t, s in itertools.product(range(70), range(70)):
        if s <= t:
            weights[:, :, t, s] = (1 - g[:, :, s]) * g[:, :, s + 1 : t + 1].prod(-1)
    expected = (weights / weights.sum(-1, keepdim=True) @ v).repeat_interleave(2, 1)
    assert (mechanism(q, k, v, inputs=inputs).values - expected).abs().max() < 1e-10


def test_a_gate_of_1_less_1_over_t_is_no_gate() -> None:
    """prod (1 - 1/r) telescopes: every key weighs 1/t. Without a gate the sums are those of linear attention."""
    gated, plain = build(gate=True, dim=5), build(dim=5)
    q, k, v = draw(150, 150, dim=5)
    t = torch.arange(1, 151, dtype=torch.float64)
    raw = (t - 1 + 1e-30).log().clamp_min(-60)  # sigmoid(log(t - 1)) = 1 - 1/t
    with torch.no_grad():
        gated.gate_bias.zero_()
    assert torch.equal(gated.projection, plain.projection)
    expected = plain(q, k, v).values
    inputs = gated.activate({"log_gate": raw[:, None].expand(2, 2, -1, 1)})
    assert (gated(q, k, v, inputs=inputs).values - expected).abs().max() < 1e-9 * expected.abs().max()


def test_the_gate_is_the_sigmoid_of_what_the_layer_projects() -> None:
    """log g = log sigmoid(w_g . x + b_g) with a b_g per head of keys that starts at 3, in float32 at least."""
    mechanism = build(gate=True)
    assert mechanism.gate_bias.tolist() == [3.0, 3.0]
    assert dict(mechanism.info.inputs) == {"log_gate": regard.core.info.Input(slots="keys", heads="key", high=0.0)}
    assert build().info.inputs == {}
    with torch.no_grad():
        mechanism.gate_bias.copy_(torch.tensor([0.5, -1.0]))
    raw = torch.randn(2, 2, 6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = mechanism.activate({"log_gate": raw})["log_gate"]
    for b, h, i in itertools.product(range(2), range(2), range(6)):
        expected = math.log(sigmoid(raw[b, h, i, 0].item() + (0.5, -1.0)[h]))
        assert found[b, h, i, 0].item() == pytest.approx(expected, abs=1e-14)
    assert mechanism.float().activate({"log_gate": raw.bfloat16()})["log_gate"].dtype == torch.float32


def test_a_gate_of_1_writes_nothing_and_one_near_it_a_little() -> None:
    """log g = 0 has weight exactly 0 with finite gradients; log g = -1e-12 has weight 1e-12, every digit of it."""
    mechanism = build(gate=True, dim=5)
    q, k, v = draw(9, 9, dim=5)
    inputs = gates(mechanism, 9)
    inputs["log_gate"][:, :, 3] = 0
    x = [y.requires_grad_() for y in (q, k, v, inputs["log_gate"])]
    out = mechanism(*x[:3], inputs={"log_gate": x[3]}).values
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.square().sum(), x))
    real = torch.arange(9) != 3
    kept = mechanism(q, k, v, key_mask=real.expand(2, -1), inputs=inputs).values
    assert (out - kept).abs().max() < 1e-12
    none = mechanism(q, k, v, inputs={"log_gate": torch.zeros_like(x[3])}).values
    assert not none.any()
    with torch.no_grad():
        mechanism.log_sigma.fill_(20.0)  # a kernel so wide that every weight is 1
        same = mechanism(q, k, v, inputs={"log_gate": torch.full_like(x[3], -1e-12)}).values
    mean = v.cumsum(2) / torch.arange(1, 10)[:, None]
    assert (same - mean.repeat_interleave(2, 1)).abs().max() < 1e-10


def test_hidden_keys_have_no_gate() -> None:
    """What stands under the mask as a gate, NaN included, forgets nothing, writes nothing and gets no gradient."""
    mechanism = build(gate=True)
    q, k, v = draw(30, 30)
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(5)) > 0.4
    inputs = gates(mechanism, 30)["log_gate"]
    expected = mechanism(q, k, v, key_mask=mask, inputs={"log_gate": inputs}).values
    for other in (-7.0, float("nan")):
        changed = torch.where(mask[:, None, :, None], inputs, other).requires_grad_()
        for impl in (mechanism, build(gate=True, impl="reference")):
            found = impl(q, k, v, key_mask=mask, inputs={"log_gate": changed}).values
            assert (found - expected).abs().max() < 1e-10 * expected.abs().max()
            (slope,) = torch.autograd.grad(found.square().sum(), changed)
            assert slope.isfinite().all()
            assert not slope[~mask[:, None, :, None].expand_as(slope)].any()


def test_gates_stay_precise_over_a_long_past() -> None:
    """Float32 against float64, 2e-6: strong decay, whose logarithms reach thousands."""
    mechanism = build(gate=True, num_features=64)
    raw = 3 * torch.randn(2, 2, 1500, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        mechanism.gate_bias.fill_(-1)
        mechanism.log_sigma.fill_(0.5)
    inputs = mechanism.activate({"log_gate": raw})
    assert inputs["log_gate"].sum(2).min() < -2000
    x = draw(1500, 1500)
    exact = mechanism(*x, inputs=inputs).values
    single = {name: y.float() for name, y in inputs.items()}
    found = mechanism.float()(*(y.float() for y in x), inputs=single).values
    assert (found - exact).abs().max() < 2e-6 * exact.abs().max()


@pytest.mark.parametrize(("sigma", "expected"), [(1.0, 0.0), (0.5, 0.09), (0.25, 0.5)])
def test_how_often_the_total_is_not_positive(sigma: float, expected: float) -> None:
    """SPEC F4, for D = 64, dim 64 and 100 unrelated keys: 8 draws of W for 8 heads, 64 queries of 4 sequences each."""
    fractions = []
    for seed in range(8):
        mechanism = regard.build("rfa", Heads(count=8, key_dim=64, seed=seed), num_features=128, sigma=sigma).eval()
        g = torch.Generator().manual_seed(seed)
        q, k = torch.randn(4, 8, 64, 64, generator=g), torch.randn(4, 8, 100, 64, generator=g)
        fractions.append(mechanism.nonpositive(q, k))
    found = torch.cat(fractions)
    error = found.std().item() / len(found) ** 0.5
    assert error < 0.02
    assert abs(found.mean().item() - expected) < 0.02


def test_totals_keep_their_sign_and_a_distance_from_zero() -> None:
    """Two opposite keys whose weights cancel but for 1e-9: divided by 1e-6, not by 1e-9; the values stay finite."""
    from regard.attention.kernel.rfa import away_from_zero

    total = torch.tensor([1e-9, -1e-9, 0.0, 0.5, -0.5], dtype=torch.float64)
    assert away_from_zero(total).tolist() == [1e-6, -1e-6, 1e-6, 0.5, -0.5]
    mechanism = build(num_features=2, sigma=0.1)
    q, k, v = (x.requires_grad_() for x in draw(200, 200))
    out = mechanism(q, k, v).values
    assert out.isfinite().all()
    assert mechanism.nonpositive(q, k).min() > 0.2
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.square().sum(), (q, k, v)))


def test_nonpositive_counts_rows_that_see_a_key() -> None:
    q, k, _ = draw(30, 30)
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(5)) > 0.5
    mask[1] = False
    mechanism = build(sigma=0.2)
    rows, sigma = mechanism.projection.tolist(), mechanism.log_sigma.exp().tolist()
    below = seen = 0
    for i in range(30):
        keys = [j for j in range(i + 1) if mask[0, j]]
        fq = features("trigonometric", q[0, 3, i].tolist(), rows[1], sigma[1])
        fk = [features("trigonometric", k[0, 1, j].tolist(), rows[1], sigma[1]) for j in keys]
        total = sum(x * y for f in fk for x, y in zip(fq, f, strict=True))
        seen, below = seen + bool(keys), below + (bool(keys) and total <= 0)
    assert mechanism.nonpositive(q, k, key_mask=mask)[3].item() == pytest.approx(below / seen)
    assert 0 < below < seen
    gated = build(sigma=0.2, gate=True)
    inputs = gates(gated, 30)
    inputs["log_gate"][:, :, ~mask[0]] = float("nan")
    found = gated.nonpositive(q, k, key_mask=mask, inputs=inputs)
    assert ((found >= 0) & (found <= 1)).all()
    assert not torch.equal(found, mechanism.nonpositive(q, k, key_mask=mask))


def test_nonpositive_counts_hidden_gates_as_open() -> None:
    q, k, _ = draw(30, 30)
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(5)) > 0.4
    gated = build(sigma=0.2, gate=True)
    inputs = gates(gated, 30)
    hidden = ~mask[:, None, :, None]
    wanted = gated.nonpositive(q, k, key_mask=mask, inputs={"log_gate": inputs["log_gate"].masked_fill(hidden, 0)})
    assert (wanted > 0).any()
    for content in (-3.0, float("nan")):
        filled = {"log_gate": inputs["log_gate"].masked_fill(hidden, content)}
        assert torch.equal(gated.nonpositive(q, k, key_mask=mask, inputs=filled), wanted)


def test_the_length_of_a_vector_does_not_matter() -> None:
    mechanism, (q, k, v) = build(), draw()
    assert (mechanism(7 * q, 0.1 * k, v).values - mechanism(q, k, v).values).abs().max() < 1e-11
    zero = [torch.zeros_like(q).requires_grad_(), torch.zeros_like(k).requires_grad_()]
    out = mechanism(*zero, v).values
    mean = v.cumsum(2) / torch.arange(1, 10)[:, None]
    assert (out - mean.repeat_interleave(2, 1)).abs().max() < 1e-12
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), zero))


def test_training_draws_from_the_pool() -> None:
    """Each call takes one of the pool's matrices for each head; few are seen; evaluation keeps the last."""
    mechanism = build(pool_size=3).train()
    x, seen = draw(), [set(), set()]
    for _ in range(40):
        mechanism(*x)
        for head, w in enumerate(mechanism.projection):
            seen[head].add(tuple(w.flatten().tolist()))
    assert [len(each) for each in seen] == [3, 3]
    assert not seen[0] & seen[1]
    mechanism.eval()
    last, calls = mechanism.projection.clone(), mechanism.calls.clone()
    mechanism(*x)
    assert torch.equal(mechanism.projection, last)
    assert mechanism.calls == calls == 40
    resumed = build(pool_size=3).train()
    resumed.load_state_dict(mechanism.state_dict())
    mechanism.train()
    for each in (mechanism, resumed):
        each(*x)
    assert torch.equal(mechanism.projection, resumed.projection)
    fixed = build(redraw_interval=None).train()
    before = fixed.projection.clone()
    fixed(*x)
    assert torch.equal(fixed.projection, before)


def test_orthogonal_rows() -> None:
    w = build(orthogonal=True, num_features=8).projection[0]
    gram = w @ w.mT
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    w = build(num_features=8).projection[0]
    assert (w @ w.mT - (w @ w.mT).diagonal().diag()).abs().max() > 0.1


def test_gates_need_an_order() -> None:
    with pytest.raises(UnsupportedError, match="forgets along the sequence"):
        build(False, gate=True)
    facts = regard.describe("rfa(gate=True)")
    assert not facts.supports.bidirectional
    assert not facts.supports.cross
    assert regard.describe('rfa(feature_map="arc_cosine")').nonnegative
    assert not regard.describe("rfa").nonnegative


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "positive"}, "option feature_map='positive' is not valid: valid: arc_cosine, trigonometric"),
        ({"impl": "quadratic"}, "option impl='quadratic' is not valid: valid: auto, reference"),
        ({"num_features": 7}, "multiple"),
        ({"sigma": 0.0}, "sigma=0.0 is not valid: Input should be greater than 0"),
        ({"pool_size": 0}, "pool_size=0 is not valid: Input should be greater than or equal to 1"),
        ({"redraw_interval": 0}, "redraw_interval=0 is not valid: Input should be greater than or equal to 1"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    from regard.attention.kernel.rfa import Rfa

    with pytest.raises(ConfigError, match=message):
        Rfa(Heads(count=1, key_dim=4), **options)


@pytest.mark.parametrize("feature_map", ["trigonometric", "arc_cosine"])
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-14, 1e-13, 1e-7, 1.0, 1e7, 1e18, 1e19, 1e30, 1e37])
def test_only_directions_count_in_float32(scale, feature_map):
    """Squares of numbers below 1e-19 or above 1e19 leave float32; so did the gradient below 1e-13."""
    mechanism = regard.build("rfa", Heads(count=4, kv_count=2, key_dim=4, value_dim=3), feature_map=feature_map).eval()
    q, k, v = (x.float() for x in draw())
    q, k = ((x * scale).requires_grad_() for x in (q, k))
    values = mechanism(q, k, v).values
    expected = loops(mechanism, q.double(), k.double(), v.double())
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=1e-5)
    slopes = torch.autograd.grad(values.square().sum(), (q, k))
    ones = [(x.detach().double() / scale).requires_grad_() for x in (q, k)]
    wanted = torch.autograd.grad(mechanism.double()(*ones, v.double()).values.square().sum(), ones)
    for slope, want in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope.double() * scale, want, rtol=0, atol=1e-4 * want.abs().max().item())


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_only_directions_count_in_float64(impl, scale):
    """Squares of these numbers leave the type, in the definition too, so each is compared with itself at size 1."""
    rfa = regard.build(f"rfa(num_features=16, impl={impl})", Heads(count=2, key_dim=4)).double().eval()
    q, k, v = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rfa(q * scale, k * scale, v).values, rfa(q, k, v).values, rtol=1e-10, atol=1e-10)
