"""Feature maps against their formulas, their gradients, and the laws of the random ones (SPEC F1, F1b, F3)."""

import math

import pytest
import torch

from regard.core.errors import ConfigError
from regard.features.maps import FEATURE_MAPS, feature_map
from regard.features.projections import draw_projection

RANDOM = sorted(name for name, map_ in FEATURE_MAPS.items() if map_.random)
ESTIMATORS = ("positive_random", "hyperbolic_random", "trigonometric")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def projection_for(name: str, dim: int, rows: int = 6) -> torch.Tensor | None:
    return draw_projection(rows, dim, seeded(1)).double() if FEATURE_MAPS[name].random else None


def literal(name: str, x: list[float], rows: list[list[float]]) -> list[float]:
    """The features of one vector, number by number."""
    dots = [sum(w * a for w, a in zip(row, x, strict=True)) for row in rows]
    half = sum(a * a for a in x) / 2
    match name:
        case "elu_plus_one":
            return [a + 1 if a > 0 else math.exp(a) for a in x]
        case "relu":
            return [max(a, 0.0) for a in x]
        case "sigmoid":
            return [1 / (1 + math.exp(-a)) for a in x]
        case "identity":
            return x
        case "softmax_features":
            return [math.exp(a) / sum(math.exp(b) for b in x) for a in x]
        case "taylor":
            return [1.0, *x, *(a * b / math.sqrt(2) for a in x for b in x)]
        case "positive_random":
            return [math.exp(y - half) / math.sqrt(len(rows)) for y in dots]
        case "hyperbolic_random":
            return [math.exp(y - half) / math.sqrt(2 * len(rows)) for y in [*dots, *(-y for y in dots)]]
        case "trigonometric":
            both = [*(math.sin(y) for y in dots), *(math.cos(y) for y in dots)]
            return [y * math.exp(half) / math.sqrt(len(rows)) for y in both]
        case "relu_random":
            return [max(y, 0.0) + 1e-3 for y in dots]
        case "fourier_random":
            return [y / math.sqrt(len(rows)) for y in [*map(math.sin, dots), *map(math.cos, dots)]]
        case "arc_cosine_random":
            return [max(y, 0.0) / math.sqrt(len(rows)) for y in dots]
    raise AssertionError(name)


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_formula_and_count(name: str) -> None:
    x, projection = vectors(7, 4), projection_for(name, 4)
    rows = [] if projection is None else projection.tolist()
    expected = torch.tensor([literal(name, y.tolist(), rows) for y in x], dtype=torch.float64)
    found = FEATURE_MAPS[name](x, projection)
    assert found.shape == (7, FEATURE_MAPS[name].count(4, len(rows)))
    assert (found - expected).abs().max() < 1e-13 * expected.abs().max()


def test_small_elu_features_keep_their_digits() -> None:
    x = torch.tensor([-20.0, -60.0])
    assert torch.allclose(feature_map("elu_plus_one")(x).double(), x.double().exp(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_nonnegative_and_positive_as_declared(name: str) -> None:
    map_ = FEATURE_MAPS[name]
    x, y = vectors(400, 3, seed=1), vectors(400, 3, seed=2)
    features = map_(x, projection_for(name, 3))
    assert (features.min() >= 0) == map_.nonnegative
    products = features @ map_(y, projection_for(name, 3)).mT
    assert (products.min() > 0) == map_.positive
    assert (map_.scaled(x, projection_for(name, 3))[1] is not None) == map_.log_scale


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_pull_is_the_gradient(name: str) -> None:
    map_, projection = FEATURE_MAPS[name], projection_for(name, 4)
    x = vectors(2, 9, 4, seed=3).requires_grad_()
    features, _ = map_.scaled(x, projection)
    given = vectors(*features.shape, seed=4)
    (expected,) = torch.autograd.grad(features, x, given)
    found = map_.pull(given.clone(), features.detach(), x.detach(), projection)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.parametrize("name", RANDOM)
def test_the_features_carry_the_whole_derivative(name: str) -> None:
    map_, projection = FEATURE_MAPS[name], projection_for(name, 4)
    x = vectors(5, 4, seed=3).requires_grad_()
    given = vectors(5, map_.count(4, 6), seed=4)
    (found,) = torch.autograd.grad(map_(x, projection), x, given)
    step = 1e-6 * vectors(5, 4, seed=5)
    slope = ((map_(x + step, projection) - map_(x - step, projection)) * given).sum() / 2
    assert (found * step).sum().item() == pytest.approx(slope.item(), rel=1e-7)


@pytest.mark.parametrize("name", ["positive_random", "hyperbolic_random"])
def test_scaled_features_neither_overflow_nor_underflow(name: str) -> None:
    x = 1e4 * torch.randn(50, 8, generator=seeded())
    features, log_scale = FEATURE_MAPS[name].scaled(x, draw_projection(16, 8, seeded(1)))
    assert log_scale is not None
    assert log_scale.isfinite().all()
    assert (features.amax(-1) == 1).all()
    tiny = torch.finfo(torch.float32).tiny
    assert (features @ features.mT).min() > tiny
    assert (features.min() ** 2).item() > tiny


def kernel(name: str, q: torch.Tensor, k: torch.Tensor) -> float:
    """What the random features estimate."""
    if name == "fourier_random":
        return math.exp(-(q - k).square().sum() / 2)
    if name == "arc_cosine_random":
        angle = math.acos(q @ k / (q.norm() * k.norm()))
        return (q.norm() * k.norm()).item() * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    return math.exp(q @ k)


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("name", [*ESTIMATORS, "fourier_random", "arc_cosine_random"])
def test_estimates_are_unbiased(name: str, orthogonal: bool) -> None:
    """E[phi(q) . phi(k)] is the kernel: each block of 4 rows is one sample; |z| <= 5, and 1% would show."""
    q, k = vectors(4, seed=1, scale=0.5), vectors(4, seed=2, scale=0.5)
    k = q + k if name == "arc_cosine_random" else k  # near each other: at a right angle few rows see both
    blocks = 200_000 if name == "arc_cosine_random" else 30_000
    w = draw_projection(4 * blocks, 4, seeded(7), orthogonal=orthogonal).double().view(blocks, 4, 4)
    samples = (FEATURE_MAPS[name](q.expand(blocks, 1, 4), w) * FEATURE_MAPS[name](k.expand(blocks, 1, 4), w)).sum(
        (1, 2)
    )
    target, error = kernel(name, q, k), samples.std().item() / blocks**0.5
    assert error < 0.01 * target / 3, "too few samples to see a bias of 1%"
    assert abs(samples.mean().item() - target) < 5 * error


@pytest.mark.parametrize("name", ESTIMATORS)
def test_variances_of_independent_rows(name: str) -> None:
    """SPEC F3: the mean squared error for one row of W, against its sample; |z| <= 5, and 3% would show."""
    q, k = vectors(4, seed=1, scale=0.4), vectors(4, seed=2, scale=0.4)
    count = 1_000_000
    w = draw_projection(count, 4, seeded(8), orthogonal=False).double()[:, None]
    samples = (FEATURE_MAPS[name](q.expand(count, 1, 4), w) * FEATURE_MAPS[name](k.expand(count, 1, 4), w)).sum((1, 2))
    exact, plus, minus = math.exp(q @ k), (q + k).square().sum().item(), (q - k).square().sum().item()
    positive = math.exp(plus) * exact**2 * (1 - math.exp(-plus))
    expected = {
        "positive_random": positive,
        "hyperbolic_random": 0.5 * (1 - math.exp(-plus)) * positive,
        "trigonometric": math.exp(plus) * exact**-2 * (1 - math.exp(-minus)) ** 2 / 2,
    }[name]
    squares = (samples - exact).square()
    error = squares.std().item() / count**0.5
    assert error < 0.03 * expected / 3, "too few samples to see a variance off by 3%"
    assert abs(squares.mean().item() - expected) < 5 * error


def test_rows_of_one_length_are_biased_and_vary_less() -> None:
    """SPEC F3: norms="sqrt" fixes |w|: another kernel, with less variance than exp(q . k)'s unbiased estimate."""
    q, k = vectors(4, seed=1, scale=0.8), vectors(4, seed=2, scale=0.8)
    found, phi = {}, feature_map("positive_random")
    for norms in ("chi", "sqrt"):
        w = draw_projection(4 * 60_000, 4, seeded(5), norms=norms).double().view(-1, 4, 4)
        samples = (phi(q.expand(len(w), 1, 4), w) * phi(k.expand(len(w), 1, 4), w)).sum((1, 2))
        found[norms] = samples.mean().item(), samples.std().item() / len(w) ** 0.5
    (mean, error), (fixed, smaller) = found["chi"], found["sqrt"]
    assert abs(mean - math.exp(q @ k)) < 5 * error
    assert abs(fixed - math.exp(q @ k)) > 10 * smaller
    assert smaller < 0.8 * error


def test_projection_blocks_are_orthogonal_and_norms_as_asked() -> None:
    w = draw_projection(20, 8, seeded(3)).double()
    for start in (0, 8, 16):
        block = w[start : start + 8]
        gram = block @ block.mT
        assert (gram - gram.diagonal().diag()).abs().max() < 1e-5
    assert (w[:8] @ w[8:16].mT).abs().max() > 0.1
    assert w.norm(dim=1).std() > 0.1
    fixed = draw_projection(20, 8, seeded(3), norms="sqrt")
    assert torch.allclose(fixed.norm(dim=1), torch.full((20,), 8**0.5), atol=1e-5)
    norms = draw_projection(40_000, 4, seeded(4), orthogonal=False).double().square().sum(1)
    assert abs(norms.mean().item() - 4) < 5 * norms.std().item() / 200


def test_projection_depends_on_its_generator_only() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = draw_projection(5, 4, seeded(2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(draw_projection(5, 4, seeded(2)), first)
    assert not torch.equal(draw_projection(5, 4, seeded(3)), first)


def test_errors_say_the_way_out() -> None:
    with pytest.raises(ConfigError, match="did you mean 'elu_plus_one'"):
        feature_map("elu_plus_1")
    with pytest.raises(ConfigError, match="'chi' or 'sqrt'"):
        draw_projection(4, 4, seeded(), norms="gaussian")


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_the_derivative_at_exactly_0_is_the_same_by_autograd_and_by_the_passes(name):
    map_, projection = FEATURE_MAPS[name], projection_for(name, 4)
    x = torch.zeros(1, 2, 4, dtype=torch.float64, requires_grad=True)
    rows = projection if projection is None else projection[None]
    features, _ = map_.scaled(x, rows)
    slope = vectors(*features.shape, seed=3)
    (by_autograd,) = torch.autograd.grad(features, x, slope)
    by_pull = map_.pull(slope.clone(), features.detach(), x.detach(), rows)
    torch.testing.assert_close(by_autograd, by_pull, rtol=0, atol=1e-12)
    if name == "elu_plus_one":
        torch.testing.assert_close(by_autograd, slope)  # elu has derivative 1 at 0
