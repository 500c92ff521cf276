"""Nadaraya-Watson regression: loops over the sample, its limits, its identity with softmax, and leaving one out."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel(name: str, square: float) -> float:
    return {
        "gaussian": math.exp(-square / 2),
        "box": 1.0 if square <= 1 else 0.0,
        "epanechnikov": max(0.0, 1 - square),
    }[name]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bandwidth", ["fixed", "scalar", "matrix"])
@pytest.mark.parametrize("name", ["gaussian", "box", "epanechnikov"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 8), (17, 17)])
def test_pairs_one_at_a_time(queries: int, keys: int, name: str, bandwidth: str, causal: bool) -> None:
    if name == "box" and bandwidth != "fixed":
        pytest.skip("a box has no slope to learn from")
    heads = regard.Heads(count=2, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("gaussian", heads, kernel=name, bandwidth=bandwidth, inverse_bandwidth=0.5).double()
    with torch.no_grad():
        for weight in mechanism.parameters():
            weight.add_(0.1 * draw(*weight.shape, seed=9))
    metrics = {
        "fixed": lambda head: 0.5 * torch.eye(3).double(),
        "scalar": lambda head: mechanism.weight[head].item() * torch.eye(3).double(),
        "matrix": lambda head: mechanism.weight[0].detach(),
    }
    q, k, v = draw(1, 2, queries, 3), draw(1, 1, keys, 3, seed=1), draw(1, 1, keys, 2, seed=2)
    table = draw(1, 2, queries, keys, seed=3)
    keep = [j % 4 != 2 for j in range(keys)]
    empty = 0
    for mask, bias in ((None, None), (keep, None), (keep, table)):
        key_mask = None if mask is None else torch.tensor([mask])
        got = mechanism(q, k, v, key_mask=key_mask, bias=None if bias is None else ScoreBias(table=bias)).values[0]
        for head in range(2):
            metric = metrics[bandwidth](head)
            for i in range(queries):
                last = i + keys - queries if causal else keys - 1
                above, below = torch.zeros(2, dtype=torch.float64), 0.0
                for j in range(last + 1):
                    if mask is not None and not mask[j]:
                        continue
                    square = (metric @ (q[0, head, i] - k[0, 0, j])).square().sum().item()
                    weight = kernel(name, square) * (1 if bias is None else math.exp(bias[0, head, i, j].item()))
                    above, below = above + weight * v[0, 0, j], below + weight
                expected = above / below if below else torch.zeros(2).double()
                empty += not below
                torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-11)
    if name != "gaussian" and queries == 17:
        assert empty > 0


def test_golden_values() -> None:
    x = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)[None, None]
    y = torch.tensor([[1.0], [3.0], [9.0]], dtype=torch.float64)[None, None]
    box = regard.attend(x, x, y, "gaussian(kernel=box)").flatten().tolist()
    assert box == [2.0, 2.0, 9.0]  # a distance of exactly 1 is inside
    at = torch.tensor([[0.5], [2.5]], dtype=torch.float64)[None, None]
    curved = regard.attend(at, x, y, "gaussian(kernel=epanechnikov, inverse_bandwidth=0.5)").flatten().tolist()
    # u = .25, .25, 1.75 and 1.25, .75, .75
    assert curved == pytest.approx([2.0, 6.0], abs=1e-12)
    gauss = regard.attend(at[:, :, :1], x[:, :, 1:], y[:, :, 1:], "gaussian").item()
    one, two = math.exp(-0.125), math.exp(-6.125)
    assert gauss == pytest.approx((3 * one + 9 * two) / (one + two), abs=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_a_softmax_with_a_penalty_on_the_norms_of_the_keys(causal: bool) -> None:
    q, k, v = (draw(2, 2, 17, 4, seed=s) for s in range(3))
    for w in (1.0, 0.6):
        logits = w**2 * (q @ k.mT - k.square().sum(-1)[:, :, None] / 2)
        if causal:
            logits = logits.masked_fill(torch.ones(17, 17).triu(1).bool(), float("-inf"))
        got = regard.attend(q, k, v, f"gaussian(inverse_bandwidth={w})", causal=causal)
        torch.testing.assert_close(got, logits.softmax(-1) @ v, rtol=0, atol=1e-12)
    unit = k / k.norm(dim=-1, keepdim=True)  # without the penalty it is scaled dot-product attention
    got = regard.attend(q, unit, v, "gaussian(inverse_bandwidth=0.6)", causal=causal)
    torch.testing.assert_close(got, regard.attend(q, unit, v, causal=causal, scale=0.36), rtol=0, atol=1e-12)


def test_a_wide_kernel_averages_and_a_narrow_one_takes_the_nearest() -> None:
    q, k, v = draw(1, 1, 20, 3), draw(1, 1, 30, 3, seed=1), draw(1, 1, 30, 2, seed=2)
    wide = regard.attend(q, k, v, "gaussian(inverse_bandwidth=1e-8)")
    torch.testing.assert_close(wide, v.mean(2, keepdim=True).expand_as(wide), rtol=0, atol=1e-12)
    narrow = regard.attend(q, k, v, "gaussian(inverse_bandwidth=1e4)")
    nearest = torch.cdist(q, k).argmin(-1)[0, 0]
    torch.testing.assert_close(narrow[0, 0], v[0, 0, nearest], rtol=0, atol=1e-12)
    itself = regard.attend(k, k, v, "gaussian(inverse_bandwidth=1e4)")
    torch.testing.assert_close(itself, v, rtol=0, atol=1e-12)  # it interpolates its own sample


@pytest.mark.parametrize("name", ["box", "epanechnikov"])
def test_an_empty_window_returns_exactly_zero_with_finite_gradients(name: str) -> None:
    q = torch.tensor([[0.0], [50.0]], dtype=torch.float64)[None, None].requires_grad_()
    k = torch.tensor([[0.1], [0.9], [1.0], [3.0]], dtype=torch.float64)[None, None].requires_grad_()
    v = draw(1, 1, 4, 2).requires_grad_()
    values = regard.attend(q, k, v, f"gaussian(kernel={name})")
    assert not values[0, 0, 1].any()
    assert bool(values[0, 0, 0].all())
    grads = torch.autograd.grad(values.square().sum(), (q, k, v))
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert not grads[2][0, 0, 3].any()
    facts = regard.describe(f"gaussian(kernel={name})")
    assert not facts.rows_sum_to_one
    assert regard.describe("gaussian").rows_sum_to_one


@pytest.mark.parametrize("name", ["gaussian", "box", "epanechnikov"])
def test_leaving_one_out_is_the_sample_without_each_point(name: str) -> None:
    x, y = draw(1, 1, 15, 2), draw(1, 1, 15, 3, seed=1)
    heads = regard.Heads(count=1, key_dim=2, value_dim=3)
    mechanism = regard.build("gaussian", heads, kernel=name, inverse_bandwidth=0.7, leave_one_out=True)
    got = mechanism(x, x, y).values
    for i in range(15):
        rest = [j for j in range(15) if j != i]
        alone = regard.attend(
            x[:, :, i : i + 1], x[:, :, rest], y[:, :, rest], f"gaussian(kernel={name}, inverse_bandwidth=0.7)"
        )
        torch.testing.assert_close(got[:, :, i], alone[:, :, 0], rtol=0, atol=1e-12)
    assert not mechanism(x[:, :, :1], x[:, :, :1], y[:, :, :1]).values.any()  # nothing is left
    y[:, :, 4] = 1e6
    moved = (mechanism(x, x, y).values - got).abs().amax((0, 1, 3)) > 0
    assert not moved[4]
    assert moved.any()


@pytest.mark.parametrize("curve", ["from zero", "wide"])
def test_leaving_one_out_with_a_bias_by_distance(curve: str) -> None:
    x = draw(1, 1, 9, 2)
    mechanism = regard.build("gaussian(leave_one_out=True)", regard.Heads(count=1, key_dim=2))
    bias = (
        ScoreBias(high=0, curve=draw(1, 9, seed=2))
        if curve == "from zero"
        else ScoreBias(high=8, curve=draw(1, 17, seed=2))
    )
    rows = regard.weights(mechanism, x, x, bias=bias)[0, 0]
    at = torch.arange(9)
    logits = -torch.cdist(x, x)[0, 0].square() / 2 + bias.logits(at, at)[0, 0]
    expected = logits.masked_fill(torch.eye(9).bool(), float("-inf")).softmax(-1)
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-12)


def test_a_bandwidth_trained_by_leaving_one_out_predicts_better_than_one_trained_with_it() -> None:
    """With itself visible the best bandwidth interpolates the noise; the trained weight is loaded to predict."""
    x = 5 * torch.rand(1, 1, 50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = 2 * x.sin() + x**0.8 + 0.5 * draw(1, 1, 50, 1, seed=1)
    grid = torch.linspace(0, 5, 100, dtype=torch.float64).reshape(1, 1, -1, 1)
    errors, learned = {}, {}
    for leave in (True, False):
        heads = regard.Heads(count=1, key_dim=1)
        trained = regard.build("gaussian", heads, bandwidth="scalar", leave_one_out=leave).double().train()
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.5)
        for _ in range(100):
            optimizer.zero_grad()
            (trained(x, x, y).values - y).square().mean().backward()
            optimizer.step()
        served = regard.build("gaussian(bandwidth=scalar)", heads).double()
        served.load_state_dict(trained.state_dict())
        clean = 2 * grid.sin() + grid**0.8
        errors[leave] = (served(grid, x, y).values - clean).square().mean().item()
        learned[leave] = trained.weight.item()
    assert 1 < learned[True] < 10 < learned[False]
    assert errors[True] < 0.6 * errors[False]


def test_leaving_one_out_serves_one_sample_only() -> None:
    spec = "gaussian(leave_one_out=True)"
    with pytest.raises(regard.UnsupportedError, match="all others of one sample"):
        regard.build(spec, regard.Heads(count=1, key_dim=2, causal=True))
    mechanism = regard.build(spec, regard.Heads(count=1, key_dim=2))
    with pytest.raises(regard.UnsupportedError, match="all others of one sample"):
        mechanism(draw(1, 1, 3, 2), draw(1, 1, 5, 2), draw(1, 1, 5, 2))
    with pytest.raises(regard.UnsupportedError, match="all others of one sample"):
        mechanism.initial_state(1)


@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_points_far_from_the_origin_keep_their_digits(name: str) -> None:
    """Years in float32: only differences matter, and |q|^2 - 2 q.k + |k|^2 in float32 would be wrong by 0.5."""
    x = 1990 + torch.arange(30.0)[None, None, :, None]
    y = draw(1, 1, 30, 1, seed=1).float()
    leaves = [x.clone().requires_grad_(), (x - 1990).requires_grad_()]
    spec = f"gaussian(kernel={name}, inverse_bandwidth=0.3)"
    late, early = (regard.attend(leaf, leaf, y, spec) for leaf in leaves)
    torch.testing.assert_close(late, early, rtol=0, atol=1e-6)
    slopes = (
        torch.autograd.grad(values.square().sum(), leaf) for values, leaf in zip((late, early), leaves, strict=True)
    )
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_matrix_starts_as_the_scalar() -> None:
    heads = regard.Heads(count=4, key_dim=3, kv_count=2)
    q, k, v = draw(1, 4, 9, 3), draw(1, 2, 9, 3, seed=1), draw(1, 2, 9, 3, seed=2)
    expected = regard.attend(q, k, v, "gaussian(inverse_bandwidth=0.5)")
    for bandwidth, shape in (("scalar", (4,)), ("matrix", (2, 3, 3))):
        mechanism = regard.build("gaussian", heads, bandwidth=bandwidth, inverse_bandwidth=0.5).double()
        assert mechanism.weight.shape == shape
        torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-12)


def test_a_box_is_flat_and_says_so() -> None:
    q, k, v = (draw(1, 1, 9, 2, seed=s).requires_grad_() for s in range(3))
    values = regard.attend(q, k, v, "gaussian(kernel=box, inverse_bandwidth=0.5)")
    grads = torch.autograd.grad(values.square().sum(), (q, k, v), allow_unused=True, materialize_grads=True)
    assert [bool(grad.any()) for grad in grads] == [False, False, True]
    assert regard.describe("gaussian(kernel=box)").without_gradient == "qk"
    assert regard.describe("gaussian(kernel=epanechnikov)").without_gradient == ""


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("gaussian(kernel=triangle)", "kernel"),
        ("gaussian(bandwidth=diagonal)", "bandwidth"),
        ("gaussian(kernel=box, bandwidth=scalar)", "flat"),
        ("gaussian(inverse_bandwidth=0.0)", "greater than 0"),
    ],
)
def test_bad_options_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(regard.ConfigError, match=problem):
        regard.build(spec, regard.Heads(count=1, key_dim=2))


@pytest.mark.parametrize("bandwidth", ["fixed", "scalar", "matrix"])
@pytest.mark.parametrize("origin", [0.0, 1e3, 1e4])
def test_far_from_the_origin(origin: float, bandwidth: str) -> None:
    """Only differences count, which float32 holds exactly enough; products with W and squares it does not."""
    heads = regard.Heads(count=2, key_dim=8, causal=True)
    mechanism = regard.build("gaussian", heads, bandwidth=bandwidth, inverse_bandwidth=0.4)
    with torch.no_grad():
        for weight in mechanism.parameters():
            weight.add_(0.1 * draw(*weight.shape, seed=9))
    metric = {
        "fixed": lambda: 0.4 * torch.eye(8).double().expand(2, 8, 8),
        "scalar": lambda: mechanism.weight.double()[:, None, None] * torch.eye(8).double(),
        "matrix": lambda: mechanism.weight.double(),
    }[bandwidth]()
    q, k, v = ((draw(1, 2, 30, 8, seed=s) + at).float().requires_grad_() for s, at in enumerate((origin, origin, 0.0)))
    values = mechanism(q, k, v).values
    slopes = torch.autograd.grad(values.square().sum(), (q, k, v))
    x, y, z = (each.detach().double().requires_grad_() for each in (q, k, v))
    lengths = torch.einsum("hed,bhijd->bhije", metric.detach(), x[:, :, :, None] - y[:, :, None]).square().sum(-1)
    later = torch.ones(30, 30, dtype=torch.bool).triu(1)
    wanted = (-lengths / 2).masked_fill(later, -math.inf).softmax(-1) @ z
    torch.testing.assert_close(values.double(), wanted, rtol=0, atol=2e-6)
    for slope, want in zip(slopes, torch.autograd.grad(wanted.square().sum(), (x, y, z)), strict=True):
        torch.testing.assert_close(slope.double(), want, rtol=0, atol=1e-5 * want.abs().max().item())
    state = mechanism(q[:, :, :20], k[:, :, :20], v[:, :, :20], state=mechanism.initial_state(1)).state
    rest = mechanism(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], state=state).values
    torch.testing.assert_close(rest, values[:, :, 20:], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("offset", [0.0, 20.0, 400.0])
def test_a_matrix_learns_from_points_far_from_the_origin(offset: float, dtype: torch.dtype, tolerance: float) -> None:
    spec = "gaussian(bandwidth=matrix, inverse_bandwidth=0.5)"
    q, k, v = ((draw(1, 1, 40, 8, seed=at) + offset * (at < 2)).to(dtype) for at in range(3))
    mechanism, exact = (regard.build(spec, regard.Heads(count=1, key_dim=8)).to(kind) for kind in (dtype, torch.double))
    wanted = exact.definition(*(x.double() for x in (q, k, v)))
    way = draw(*wanted.shape, seed=3)
    (wanted * way).sum().backward()
    (mechanism(q, k, v).values.double() * way).sum().backward()
    slope, right = mechanism.weight.grad.double(), exact.weight.grad
    assert (slope - right).norm() < tolerance * right.norm()


@pytest.mark.parametrize("bandwidth", ["fixed", "scalar", "matrix"])
@pytest.mark.parametrize("size", [1e19, 1e25, 1e37])
def test_points_whose_distances_leave_float32_have_a_nearest_one(bandwidth: str, size: float) -> None:
    q, k, v = (draw(1, 2, 20, 4, seed=seed).float() for seed in range(3))
    mechanism = regard.build("gaussian", regard.Heads(count=2, key_dim=4), bandwidth=bandwidth)
    nearest = torch.cdist(q.double(), k.double()).argmin(-1)
    assert torch.equal(mechanism(size * q, size * k, v).values, v.gather(2, nearest[..., None].expand(v.shape)))
