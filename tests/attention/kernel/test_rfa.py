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


def loops(mechanism, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The recurrence, one slot after another; padding has g = 1 and no key. The queries are the last positions."""
    name, causal, gated = mechanism.feature_map, mechanism.heads.causal, mechanism.gate
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
                if gated:
                    g = sigmoid((mechanism.gate_weight[kv] @ k[b, kv, j] + mechanism.gate_bias[kv]).item())
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
            q, k, v = draw(queries, 9)
            expected = loops(mechanism, q, k, v, key_mask)
            bound = 1e-10 * max(1, expected.abs().max())
            assert (mechanism(q, k, v, key_mask=key_mask).values - expected).abs().max() < bound
            assert (mechanism.definition(q, k, v, key_mask=key_mask) - expected).abs().max() < bound
    for n in range(1, 41) if options == {"gate": True} else ():
        q, k, v = (x[:1] for x in draw(n, n, seed=n))
        expected = loops(mechanism, q, k, v)
        assert (mechanism(q, k, v).values - expected).abs().max() < 1e-10 * max(1, expected.abs().max())


def test_gates_have_their_closed_form() -> None:
    """w_ts = (1 - g_s) prod_{s < r <= t} g_r: seen with equal keys' features, where weights are the gates alone."""
    mechanism = build(gate=True)
    with torch.no_grad():
        mechanism.log_sigma.fill_(20.0)  # a kernel so wide that every weight is 1
    q, k, v = draw(70, 70)
    g = torch.sigmoid(torch.einsum("bhjd,hd->bhj", k, mechanism.gate_weight) + mechanism.gate_bias[:, None])
    weights = torch.zeros(2, 2, 70, 70, dtype=torch.float64)
    for t, s in itertools.product(range(70), range(70)):
        if s <= t:
            weights[:, :, t, s] = (1 - g[:, :, s]) * g[:, :, s + 1 : t + 1].prod(-1)
    expected = (weights / weights.sum(-1, keepdim=True) @ v).repeat_interleave(2, 1)
    assert (mechanism(q, k, v).values - expected).abs().max() < 1e-10


def test_a_gate_of_1_less_1_over_t_is_no_gate() -> None:
    """prod (1 - 1/r) telescopes: every key weighs 1/t. Without a gate the sums are those of linear attention."""
    gated, plain = build(gate=True, dim=5), build(dim=5)
    q, k, v = draw(150, 150, dim=5)
    t = torch.arange(1, 151, dtype=torch.float64)
    k[..., 0] = (t - 1 + 1e-30).log().clamp_min(-60)  # sigmoid(log(t - 1)) = 1 - 1/t
    with torch.no_grad():
        gated.gate_weight.zero_()
        gated.gate_weight[:, 0] = 1
        gated.gate_bias.zero_()
    assert torch.equal(gated.projection, plain.projection)
    expected = plain(q, k, v).values
    assert (gated(q, k, v).values - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_every_split_with_a_state_and_its_gradient(options: dict) -> None:
    """Also that of the gates, through states whose scale is a constant to autograd; padding forgets nothing."""
    mechanism, (q, k, v) = build(**options), draw(700, 700)
    mask = torch.rand(2, 700, generator=torch.Generator().manual_seed(5)) > 0.3
    mask[:, 50:650] = False
    x = [y.requires_grad_() for y in (q, k, v)]
    leaves = [*x, *mechanism.parameters()]
    whole = mechanism(*x, key_mask=mask).values
    g = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wanted = torch.autograd.grad(whole, leaves, g)
    for cuts in ((0, 35, 700), (0, 1, 2, 3, 66, 660, 700)):
        state, parts = mechanism.initial_state(2, dtype=torch.float64), []
        for a, b in itertools.pairwise(cuts):
            out = mechanism(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], key_mask=mask[:, a:b], state=state)
            state, parts = out.state, [*parts, out.values]
        split = torch.cat(parts, 2)
        assert (split - whole).abs().max() < 1e-9 * whole.abs().max()
        for one, other in zip(torch.autograd.grad(split, leaves, g), wanted, strict=True):
            assert (one - other).abs().max() < 1e-8 * other.abs().max()
        assert state.nbytes == mechanism.state_nbytes(2, 700, torch.float64) == 2 * 2 * (12 * 4 + mechanism.gate) * 8


def test_gates_stay_precise_over_a_long_past() -> None:
    """Float32 against float64, 2e-6: strong decay, whose logarithms reach thousands."""
    mechanism = build(gate=True, num_features=64)
    with torch.no_grad():
        mechanism.gate_weight.mul_(3)
        mechanism.gate_bias.fill_(-1)
        mechanism.log_sigma.fill_(0.5)
    x = draw(1500, 1500)
    exact = mechanism(*x).values
    found = mechanism.float()(*(y.float() for y in x)).values
    assert (found - exact).abs().max() < 2e-6 * exact.abs().max()


def test_many_features_are_the_kernel() -> None:
    """Equal sigmas: cosine similarities over sigma^2 in a softmax. The error falls as 1 / sqrt(num_features)."""
    q, k, v = draw(60, 60, dim=8)
    q, k, v = q[:, ::2], k, v
    exact = ((q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT / 0.8**2).softmax(-1) @ v
    errors = []
    for count in (64, 1024, 16384):
        squares = [
            (regard.build("rfa", Heads(count=2, key_dim=8, value_dim=3, seed=seed), num_features=count, sigma=0.8)
             .eval().double()(q, k, v).values - exact).square().mean()
            for seed in range(4)
        ]  # fmt: skip
        errors.append(torch.stack(squares).mean().sqrt().item())
    assert errors[0] > 2.5 * errors[1] > 6 * errors[2]


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
        ({"feature_map": "positive"}, "no feature_map='positive'"),
        ({"impl": "quadratic"}, "no impl='quadratic'"),
        ({"num_features": 7}, "multiple"),
        ({"sigma": 0.0}, "positive sigma"),
        ({"pool_size": 0}, "pool_size must be at least 1"),
        ({"redraw_interval": 0}, "redraw_interval must be at least 1"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    from regard.attention.kernel.rfa import Rfa

    with pytest.raises(ConfigError, match=message):
        Rfa(Heads(count=1, key_dim=4), **options)
