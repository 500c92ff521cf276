"""Claims on kernels and random features: with a wrong thing in the place of the right one."""

import math

import pytest
import torch

from evidence import claims
from evidence.claims._growth import between, operations
from evidence.claims._turns import processor_seconds
from evidence.claims.importance_sampling import _Case
from evidence.claims.linear_attention_forms import alive
from evidence.claims.random_feature_variance import FORMULAS, vectors
from evidence.claims.randomized_attention_bias import moments
from evidence.claims.rank_of_attention import rank
from evidence.claims.softmax_linear_crossover import crossing
from regard import Heads, build
from regard.core.attention import generator

pytestmark = pytest.mark.study


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"linear": (("softmax", 4),)}, "linear: rank / features, worst"),
        ({"linear": (("softmax", 4),)}, "causal linear, block below: rank / features, worst"),
        ({"softmax": "linear"}, "softmax: rank / length"),
        ({"softmax": "linear"}, "causal softmax, block below: rank / side"),
    ],
)
def test_ranks_of_another_mechanism(verdicts, settings, failing):
    verdict, found, missed = verdicts("rank_of_attention", **settings)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


def test_a_rank_that_is_known():
    a, b = torch.randn(2, 30, 5, generator=generator(0), dtype=torch.float64)
    assert rank(torch.linalg.svdvals(a @ b.mT)) == 5


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"positive": "trigonometric"}, "positive: error / formula, least"),
        ({"positive": "hyperbolic_random"}, "positive: error / formula, least"),
        ({"trigonometric": "positive_random"}, "trigonometric: error / formula, most"),
        ({"hyperbolic": "positive_random"}, "pairs: error / formula, most"),
        ({"orthogonal": False}, "error, orthogonal / independent, most"),
    ],
)
def test_errors_of_other_features(verdicts, settings, failing):
    _, found, _ = verdicts("random_feature_variance", **settings, norms=(1.0, 2.0, 3.0), most=16)
    assert found[failing] != "holds"


def test_formulas_at_known_points():
    """No error where the sum or the difference vanishes; at a right angle of unit vectors by hand."""
    x, y = vectors(3, 1.0, 0.5)
    assert FORMULAS["positive"](x, -x, 4) == FORMULAS["hyperbolic"](x, -x, 4) == 0
    assert FORMULAS["trigonometric"](x, x, 4) == 0
    e = math.e
    assert FORMULAS["positive"](x, y, 4) == pytest.approx((e**2 - 1) / 4, rel=1e-12)
    assert FORMULAS["trigonometric"](x, y, 4) == pytest.approx(e**2 * (1 - e**-2) ** 2 / 8, rel=1e-12)
    assert FORMULAS["hyperbolic"](x, y, 4) == pytest.approx((e**2 - 1) * (1 - e**-2) / 8, rel=1e-12)
    assert FORMULAS["saved"](x, y, 3) == pytest.approx(4 / 15 * (1 - 1 / e) ** 2, rel=1e-12)


def test_an_estimator_that_is_biased_and_one_that_is_not(verdicts):
    small = {"heads": 16, "redraws": 8, "sample_redraws": 4, "samples": 400, "counts": ()}
    biased = {"exact": "randomized(num_samples={count}, form=official)", **small}
    unbiased = {"performer": "randomized(num_samples={count})", "mean": "softmax", **small}
    _, found, _ = verdicts("randomized_attention_bias", **biased, **{"dim": 4, "norm": 1.5})
    assert found["randomized, many samples: coordinates with |z| > 5"] == "does not hold"
    _, found, _ = verdicts("randomized_attention_bias", **unbiased)
    assert found["performer: largest |z|"] == "does not hold"
    assert found["randomized at its mean: bias / values"] == "does not hold"


def test_moments_of_known_estimates():
    draw = generator(1)
    estimates = 3 + 2 * torch.randn(10_000, 4, generator=draw, dtype=torch.float64)
    exact = moments(iter(estimates.split(100)), torch.full((4,), 3.0, dtype=torch.float64))
    assert exact.error.allclose(torch.full((4,), 0.02, dtype=torch.float64), rtol=0.05)
    assert exact.z < 5
    assert exact.beyond == 0
    off = moments(iter(estimates.split(100)), torch.full((4,), 2.5, dtype=torch.float64))
    assert off.beyond == 4
    assert off.bias == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"total": 1.05}, "multiple, balance heuristic: coordinates with |z| > 5"),
        ({"total": 1.05}, "multiple, optimal alpha: coordinates with |z| > 5"),
        ({"normalised": "uniform"}, "self-normalised: bias ~ S to the power of"),
    ],
)
def test_weights_that_do_not_sum_to_one_and_a_bias_that_stays(verdicts, settings, failing):
    _, found, _ = verdicts("importance_sampling", **settings, heads=64, trials=50_000)
    assert found[failing] == "does not hold"


def test_all_weights_of_multiple_importance_sampling_sum_to_one():
    draw = generator(2)
    q, k, v, centres, w = (torch.randn(n, 2, generator=draw, dtype=torch.float64) for n in (1, 4, 4, 4, 50))
    case = _Case(q, k, v, centres)
    alpha = case.optimal(centres + torch.randn(500, 4, 2, generator=draw, dtype=torch.float64))
    for weights in (case.balance(w), alpha(w)):
        assert weights.sum(-1).allclose(torch.ones(50, dtype=torch.float64), rtol=1e-9)


def test_densities_and_values_of_importance_sampling_are_those_of_softmax():
    """E_p[f] = softmax attention (Zheng, Wang, Kong 2022, section 3), by a grid in two dimensions."""
    draw = generator(3)
    q, k, v = (torch.randn(n, 2, generator=draw, dtype=torch.float64) for n in (1, 3, 3))
    case = _Case(q, k, v, k)
    line = torch.linspace(-9, 9, 361, dtype=torch.float64)
    w = torch.cartesian_prod(line, line)
    density = case.target(w).softmax(0)
    assert (density @ case.values(w)).allclose(((q @ k.mT).softmax(-1) @ v)[0], atol=1e-8)


def test_weights_that_make_no_difference():
    """In the small form the bound is missed either way; without any effect of the weights the ratio is exactly 1."""
    for mechanism, exactly in (("performer(num_features={count})", True), (None, False)):
        settings = {} if mechanism is None else {"lara": mechanism}
        claim = claims.build("shared_proposals", tiny=True, settings=settings)
        for seen in claims.measure(claim, range(3), tiny=True)["observations"]:
            ratios = [seen["values"]["random full"], seen["values"]["trained full"]]
            assert [ratio == 1 for ratio in ratios] == [exactly, exactly]


def test_between_points_of_a_curve():
    assert between(([1.0, 10.0, 1000.0], [8.0, 4.0, 1.0]), 100.0) == pytest.approx(2.0, rel=1e-12)
    assert between(([10.0, 1.0], [1.0, 10.0]), 100.0) == pytest.approx(0.1, rel=1e-12)


def test_another_attention_in_the_place_of_a_recurrence(verdicts):
    wrong = {"linear": "softmax", "recurrence": "linear(feature_map=relu)"}
    _, found, _ = verdicts("transformer_as_rnn", **wrong, rounds=3)
    assert found["linear: bytes of the state, longest past / shortest"] == "does not hold"
    assert found["linear: operations, longest past / shortest"] == "does not hold"
    assert found["linear: time, longest past / shortest"] != "holds"
    assert found["explicit recurrence: difference / largest logit"] == "does not hold"


def test_a_small_form_in_the_place_of_the_cumulative_sum(verdicts):
    verdict, _, missed = verdicts("linear_attention_forms", cumsum="linear", rounds=1)
    assert verdict == "inconclusive"
    assert "cumsum: numbers / (2 heads length dim (dim + 1))" in missed
    _, found, _ = verdicts("linear_attention_forms", chunked="linear(impl=cumsum)", rounds=1)
    assert found["numbers alive, cumsum / chunked"] == "does not hold"


def test_softmax_in_the_place_of_linear_attention_crosses_nowhere(verdicts):
    verdict, _, missed = verdicts("softmax_linear_crossover", linear="softmax", rounds=1, lengths=(16, 64))
    assert verdict == "inconclusive"
    assert "linear: operations ~ length to the power of" in missed


def test_crossings():
    lengths = (10.0, 100.0, 1000.0)
    flat = lengths, [5.0, 5.0, 5.0]
    assert crossing((lengths, [1.0, 2.0, 4.0]), flat) == math.inf
    assert crossing((lengths, [6.0, 7.0, 8.0]), flat) == 0
    assert crossing((lengths, [6.0, 2.5, 10.0]), flat) == pytest.approx(100 * 10**0.5, rel=1e-9)


def test_operations_and_numbers_alive_are_counted_inside_operators():
    """softmax: 2 n^2 (dim + value); randomized: its pairs at least, which in-place products make; linear by hand."""
    q = torch.randn(1, 1, 128, 16, generator=generator(0))
    heads = Heads(count=1, key_dim=16)
    assert operations(lambda: build("softmax", heads)(q, q, q)) == 2 * 128**2 * 32
    assert operations(lambda: build("randomized", heads)(q, q, q)) >= 2 * 128**2 * 48
    assert operations(lambda: build("linear", heads)(q, q, q)) == 4 * 128 * 16 * 17
    assert alive(build("linear(impl=quadratic)", heads), torch.stack([q, q, q])) >= 128**2


def test_processor_time_knows_more_from_less():
    found = processor_seconds({"less": lambda: sum(range(10)), "more": lambda: sum(range(10**5))}, rounds=3)
    assert found["less"] < found["more"]
