"""Float32 tolerances follow what a definition loses on the inputs at hand, and still catch what is wrong."""

import pytest
import torch

from regard.attention.dense.gaussian import Gaussian
from regard.attention.kernel.performer import Performer
from regard.testing import check_attention
from regard.testing.compare import largest_error
from regard.testing.conditioning import DRAWS, HOPELESS_ERROR, LOSS_MULTIPLE, Loss, TermAfterTerm, assert_float32, moved
from regard.testing.inputs import LONG, Subject, exact_copy, randn
from tests.mutants.toys import ToyBuckets, ToyDense, ToyTable

FLOOR = 2e-6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def means(mechanism, x):
    """Well conditioned."""
    return {"values": x.v.square().mean(2)}


def differences(apart):
    """Quotients whose denominator is `apart` of its terms, so that their errors are multiplied by 1 / apart."""

    def quotients(mechanism, x):
        near = x.k * (1 + apart * torch.ones_like(x.k))
        return {"values": x.v.sum(-1, keepdim=True) * x.k / (near - x.k)}

    return quotients


@pytest.fixture(scope="module")
def dense():
    subject = Subject(ToyDense)
    mechanism = subject.build(False, max_length=LONG)
    return mechanism, subject.inputs(mechanism, queries=LONG, batch=1)


def lost(evaluate, mechanism, x, draws=DRAWS):
    loss = Loss(evaluate, mechanism, x, evaluate(exact_copy(mechanism), x.to(torch.float64)))
    for _ in range(draws):
        loss.draw()
    return loss.largest["values"]


def judge(actual, evaluate, mechanism, x):
    assert_float32({"values": actual}, evaluate, mechanism, x, floor=FLOOR, what="here")


def off_by(error, evaluate, mechanism, x):
    exact = evaluate(exact_copy(mechanism), x.to(torch.float64))["values"]
    actual = exact.clone()
    actual.view(-1)[exact.abs().argmax()] += error * exact.abs().max()
    return actual


def test_numbers_move_by_one_ulp_or_not_at_all():
    x = randn(2000, seed="x")
    x[:3] = torch.tensor([0.0, float("inf"), float("-inf")])
    steps = (moved(x, seeded()).view(torch.int32) - x.view(torch.int32)).tolist()
    assert steps[:3] == [0, 0, 0]
    assert {*steps} == {-1, 0, 1}
    assert all(steps.count(way) > 500 for way in (-1, 0, 1))
    assert not torch.equal(moved(x, seeded(1)), moved(x, seeded(2)))
    indices, kept = torch.arange(5), torch.ones(5, dtype=torch.bool)
    assert moved(indices, seeded()) is indices
    assert moved(kept, seeded()) is kept


def sums(x):
    """Every kind of sum that is taken in another order, with the gradients that sum in their turn."""
    x = x.requires_grad_()
    parts = [x @ x.mT, x[0] @ x[1].mT, x.sum(-1), x.sum((0, 2), keepdim=True), x.mean((1, 2)), x.mean(-2, keepdim=True)]
    parts.append(torch.einsum("bij,bkj->ik", x, x))
    total = torch.cat([part.tanh().flatten() for part in parts])
    return [*parts, *torch.autograd.grad((total * torch.arange(len(total))).sum(), x)]


def test_sums_in_another_order_are_the_same_sums():
    x = randn(3, 41, 23, seed="sums")
    exact, own = sums(x.double()), sums(x.clone())
    with TermAfterTerm(seeded(1)):
        once = sums(x.clone())
    with TermAfterTerm(seeded(2)):
        twice = sums(x.clone())
    for a, b, c, wanted in zip(once, twice, own, exact, strict=True):
        assert a.shape == wanted.shape
        assert a.dtype == torch.float32
        assert largest_error(a, wanted) < 5e-6
        assert not torch.equal(a, b)
        assert not torch.equal(a, c)
    with TermAfterTerm(seeded(1)):
        assert all(torch.equal(a, wanted) for a, wanted in zip(sums(x.double()), exact, strict=True))


def test_term_after_term_loses_more_than_a_processor_does():
    x = 1 + randn(40_000, seed="long").square()
    with TermAfterTerm(seeded()):
        errors = [largest_error(x.sum(0), x.double().sum(0)) for _ in range(4)]
    assert min(errors) > 4 * largest_error(x.sum(0), x.double().sum(0))
    assert max(errors) < 1e-4


def test_a_definition_loses_what_its_inputs_amplify(dense):
    assert lost(means, *dense) < FLOOR / LOSS_MULTIPLE
    for apart in (1e-1, 1e-3, 1e-5):
        assert 2**-25 / apart < lost(differences(apart), *dense) < 2**-22 / apart


def test_weights_move_too():
    mechanism = Subject(ToyTable).build(True)
    x = Subject(ToyTable).inputs(mechanism)
    moves = lost(lambda m, x: {"values": torch.stack([p.sum() for p in m.parameters()]) + 0 * x.v.sum()}, mechanism, x)
    assert moves > 2**-26
    assert lost(lambda m, x: {"values": x.v.new_ones(1)}, mechanism, x) == 0


def test_shared_projections_stay_one():
    seen = []
    mechanism = Subject(ToyBuckets).build(True)
    x = Subject(ToyBuckets).inputs(mechanism)
    lost(lambda m, x: seen.append((x.q, x.k)) or {"values": x.v}, mechanism, x, draws=2)
    assert len(seen) == 3
    assert all(torch.equal(q, k) for q, k in seen)
    assert not torch.equal(seen[1][0], seen[2][0])


def test_a_well_conditioned_result_gets_the_floor(dense):
    judge(off_by(0.9 * FLOOR, means, *dense), means, *dense)
    with pytest.raises(
        AssertionError, match=r"values, here: error .* allowed 2.0e-06 .*the larger of 2e-06 and 4 times"
    ):
        judge(off_by(1.1 * FLOOR, means, *dense), means, *dense)


def test_an_ill_conditioned_result_gets_more_and_not_ten_times_that(dense):
    evaluate = differences(1e-3)
    allowed = LOSS_MULTIPLE * lost(evaluate, *dense)
    assert 50 * FLOOR < allowed < HOPELESS_ERROR
    judge(evaluate(*dense)["values"], evaluate, *dense)
    judge(off_by(0.9 * allowed, evaluate, *dense), evaluate, *dense)
    for times in (1.1, 10):
        with pytest.raises(AssertionError, match=rf"allowed {allowed:.1e} .*lost in {DRAWS} draws"):
            judge(off_by(times * allowed, evaluate, *dense), evaluate, *dense)


def test_inputs_that_say_nothing_are_refused(dense):
    with pytest.raises(AssertionError, match="too ill-conditioned to judge"):
        judge(differences(1e-5)(*dense)["values"], differences(1e-5), *dense)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_wrong_on_any_inputs(dense, wrong):
    actual = means(*dense)["values"]
    actual[0, 0, 0] = wrong
    with pytest.raises(AssertionError, match=r"NaN|infinity"):
        judge(actual, means, *dense)


class TwentyFourBits(Performer):  # pyright: ignore[reportGeneralTypeIssues]
    """Sound, by another name."""

    bits = 24

    def attend(self, q, k, v, call):
        if q.dtype == torch.float32:
            q, k = (coarse(x, self.bits) for x in (q, k))
        return super().attend(q, k, v, call)


class ElevenBits(TwentyFourBits):  # pyright: ignore[reportGeneralTypeIssues]
    """Rounds queries and keys as a TF32 product would."""

    bits = 11


class EightBits(TwentyFourBits):  # pyright: ignore[reportGeneralTypeIssues]
    """Rounds queries and keys to bfloat16."""

    bits = 8


def coarse(x, bits):
    unit = torch.exp2(x.detach().abs().clamp_min(1e-30).log2().floor() + 1 - bits)
    return x + ((x / unit).round() * unit - x).detach()


@pytest.mark.parametrize("check", ["reference_float32", "float32_gradients"])
@pytest.mark.parametrize("feature_map", ["trigonometric", "positive"])
def test_coarse_numbers_show_on_any_inputs(check, feature_map):
    options = [{"num_features": 32, "feature_map": feature_map}]
    statuses = [
        check_attention(cls, options=options, checks=[check])[0] for cls in (TwentyFourBits, ElevenBits, EightBits)
    ]
    assert [r.status for r in statuses] == ["passed", "failed", "failed"], [r.message for r in statuses]
    assert "times" in statuses[1].message


def test_a_gradient_that_is_zero_excuses_nothing():
    class Leaks(Gaussian):  # pyright: ignore[reportGeneralTypeIssues]
        """A gradient where there is none, and a wrong one of the values."""

        def attend(self, q, k, v, call):
            out = super().attend(q, k, v, call)
            return out._replace(values=out.values + 1e-3 * (v - v.detach()).mean(2, keepdim=True))

    options = [{"kernel": "box", "inverse_bandwidth": 0.25}]
    assert check_attention(Gaussian, options=options, checks=["float32_gradients"])[0].status == "passed"
    (result,) = check_attention(Leaks, options=options, checks=["float32_gradients"])
    assert result.status == "failed"
    assert "gradient of v" in result.message
