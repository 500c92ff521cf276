"""Claims on exact retrieval: with a wrong thing in the place of the right one."""

import math

import pytest
import torch

from evidence import claims
from evidence.claims.attention_concentration import effective_keys
from evidence.claims.code_retrieval import direction, embed
from evidence.claims.rare_names import addresses, answer, places
from evidence.claims.sparsity_regularisers import constant, penalty, spread
from regard import Heads, build
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.retrieval import RetrievalConfig, sequences
from regard_lab.tasks.recall import RecallTask

pytestmark = pytest.mark.study

SOFT = "softmax"


@pytest.mark.parametrize(
    ("name", "settings", "failing"),
    [
        ("information_loss", {"identity": SOFT, "pairs": (2, 4)}, "identity: recall, fewest - most pairs"),
        ("information_loss", {"random": "uniform", "pairs": (2, 4)}, "middle pairs: 256 - 16 random features"),
        ("negative_features", {"signed": "linear(feature_map=relu)"}, "recall, signed - relu"),
        ("attention_concentration", {"linear": SOFT, "sharpness": 0.5}, "effective keys, linear / softmax"),
        ("post_softmax", {"shortlist": "uniform"}, "shortlist of 8: recall - linear attention's"),
        ("code_retrieval", {"relu": SOFT}, "by text: softmax - linear (relu)"),
        ("rare_names", {"relu": SOFT}, "second occurrence: accuracy, softmax - linear (relu)"),
    ],
)
def test_what_is_claimed_of_one_mechanism_does_not_hold_of_another(verdicts, name, settings, failing):
    verdict, found, missed = verdicts(name, **settings)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


@pytest.mark.parametrize(
    ("name", "settings", "control"),
    [
        ("information_loss", {"softmax": "uniform"}, "softmax, most pairs"),
        ("information_loss", {"uniform": SOFT}, "equal weights, pairs x recall"),
        ("normalisation_and_recall", {"normalised": "linear(feature_map={map}, normalise=False)"}, "normalised output"),
        ("negative_features", {"signed": "linear(feature_map=taylor)"}, "state of signed features"),
        ("post_softmax", {"everything": "uniform"}, "shortlist of every key"),
        ("code_retrieval", {"softmax": "linear"}, "by text: softmax"),
        ("rare_names", {"softmax": "local(window=9)"}, "softmax: answers unlike the program's"),
    ],
)
def test_a_measurement_that_misses_its_control_says_nothing(verdicts, name, settings, control):
    verdict, _, missed = verdicts(name, **settings)
    assert verdict == "inconclusive"
    assert any(title.startswith(control) for title in missed)


def test_a_denominator_that_helped_would_be_seen(verdicts):
    plain = "linear(feature_map=relu, normalise=False)"
    verdict, found, _ = verdicts("normalisation_and_recall", plain=plain, normalised=SOFT, sharpness=16.0, pairs=32)
    assert verdict == "holds"
    assert set(found.values()) == {"holds"}


def test_effective_keys_of_known_rows():
    rows = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0], [0, 0, 0, 0]])
    assert effective_keys(rows).tolist() == pytest.approx([1, 4, 2 * math.sqrt(2), 0])


def test_the_bound_on_a_weight_is_that_of_the_spec():
    claim = claims.build("attention_concentration")
    assert [round(claim.most(n), 3) for n in (64, 4096)] == [0.997, 0.843]


def test_addresses_are_those_of_their_bytes():
    one, other = embed(["def f(x):", "def g(x):"], 256)
    grams = [{text[at : at + 4] for at in range(6)} for text in ("def f(x):", "def g(x):")]
    shared = len(grams[0] & grams[1]) / 6
    assert float(one @ other) == pytest.approx(shared, abs=0.2)
    assert (direction(b"abcd", 8) == direction(b"abcd", 8)).all()
    same = addresses(b"xxabcd yyabcd", 64)
    torch.testing.assert_close(same[6], same[13])
    assert not torch.equal(same[5], same[6])


def test_rare_names_stand_twice_and_never_before():
    for place in places(512):
        name = place.text[place.second :]
        assert len(name) == place.size >= 7
        assert place.text[place.first : place.first + place.size] == name
        assert place.text.count(name) == 2
    assert len(places(512)) > 100


def test_the_program_counts_what_followed():
    assert answer(b"abcdX abcdY abcdY abcd", 22) == ord("Y")
    assert answer(b"abcdX abcdY abcd", 16) is None  # a tie
    assert answer(b"efgh abcd", 9) is None  # never seen


def test_a_mixture_that_cannot_see_is_no_hybrid(verdicts):
    """What does not even recall one pair says nothing of hybrids; that others can fail is in test_both_ways."""
    verdict, found, missed = verdicts("hybrid_recall", by_layer="local(window=0)")
    assert (verdict, missed) == ("inconclusive", ["one pair, linear, then softmax: accuracy"])
    assert found["linear, then softmax: accuracy - softmax's"] == "does not hold"


def test_a_softmax_that_has_not_learned_says_nothing_of_regularisers(verdicts):
    verdict, _, missed = verdicts("sparsity_regularisers", softmax="local(window=0)", steps=2)
    assert verdict == "inconclusive"
    assert "softmax: accuracy" in missed


def by_hand(kind: str, row: list[float]) -> float:
    """The loss of the weights of one query, not normalised."""
    total, count = sum(row), len(row)
    p = [a / total for a in row]
    match kind:
        case "score_l1":
            return total
        case "entropy":
            return -sum(a * math.log(a) for a in p)
        case "l_half":
            return sum(math.sqrt(a) for a in p) ** 2
    if count == 1:
        return 0.0
    sparseness = (math.sqrt(count) - sum(p) / math.sqrt(sum(a * a for a in p))) / (math.sqrt(count) - 1)
    return 1 - sparseness


ROWS = ("score_l1", "entropy", "hoyer", "l_half")


@pytest.mark.parametrize("kind", ["output_l1", "output_l1_sum", *ROWS])
@pytest.mark.parametrize("n", [1, 2, 16])
def test_regularisers_by_their_definitions(kind, n):
    """Double loops over the weights; values are those of linear attention, and nothing is lost outside of training."""
    heads = Heads(count=2, key_dim=4, value_dim=3, causal=True)
    q, k, v = (torch.randn(2, 2, n, width, generator=generator(n, width), dtype=torch.float64) for width in (4, 5, 3))
    k, mechanism = k[..., :4], build(f"evidence.claims.sparsity_regularisers:Regularised(kind={kind})", heads).train()
    got, size = mechanism(q, k, v), build("linear", heads)(q, k, v).values.abs()
    if kind in ROWS:
        rows = [
            (torch.where(q > 0, q + 1, q.exp())[b, h, i] * torch.where(k > 0, k + 1, k.exp())[b, h, : i + 1]).sum(-1)
            for b in range(2) for h in range(2) for i in range(n)
        ]  # fmt: skip
        wanted = sum(by_hand(kind, row.tolist()) for row in rows) / len(rows)
    else:
        wanted = (size.mean() if kind == "output_l1" else size.sum()).item()
    assert dict(mechanism.info.losses) == {kind: 0.01}
    assert got.losses[kind].item() == pytest.approx(wanted, abs=1e-10)
    assert torch.equal(got.values.abs(), size)
    assert mechanism.eval()(q, k, v).losses == {}


@pytest.mark.parametrize("kind", ROWS)
def test_slopes_of_regularisers(kind):
    """Also where weights are 0."""
    products = torch.rand(1, 2, 5, 5, generator=generator(3), dtype=torch.float64).tril().requires_grad_()
    values = products.new_zeros(1, 2, 5, 3)
    torch.autograd.gradcheck(lambda x: penalty(kind, values, x.tril()), products, atol=1e-7)
    sparse = torch.eye(5)[None, None].requires_grad_()
    assert torch.autograd.grad(penalty(kind, values, sparse), sparse)[0].isfinite().all()


@pytest.mark.parametrize(("kind", "one_hot", "equal"), [("entropy", 0, math.log(4)), ("hoyer", 0, 1), ("l_half", 1, 4)])
def test_regularisers_of_one_key_and_of_equal_ones(kind, one_hot, equal):
    for last, expected in (([0, 0, 1.0, 0], one_hot), ([1.0] * 4, equal)):
        products = torch.eye(4)[None, None].clone()
        products[..., 3, :] = torch.tensor(last)
        first = 3 * {"entropy": 0, "hoyer": 0, "l_half": 1}[kind]  # rows of one key
        assert penalty(kind, products, products).item() == pytest.approx((first + expected) / 4, abs=1e-6)


def test_effective_keys_of_a_model_that_looks_everywhere():
    model = LanguageModel(RetrievalConfig().model("uniform", 0)).eval()
    tokens = torch.randint(0, 64, (3, 9), generator=generator(0))
    assert spread(model, tokens) == pytest.approx(sum(range(1, 10)) / 9)
    assert constant(5) < 1e-12


def test_questions_are_counted_by_how_far_back_they_reach():
    """The value of key i stands at 2 i + 1; a model that is always right, and one that is right on near ones only."""
    claim = claims.build("hybrid_recall", settings={"window": 5})
    task = RecallTask(RetrievalConfig(length=32, sequences=40).task(4), seed=2)
    _, answers = sequences(task, "test", range(40))

    class Knows(LanguageModel):
        reach = 99

        def forward(self, tokens, **options):
            said = torch.zeros_like(tokens)
            for row, at in (answers >= 0).nonzero().tolist():
                value = next(i + 1 for i in range(0, 8, 2) if tokens[row, i] == tokens[row, at])
                said[row, at] = tokens[row, value] if at - value <= self.reach else 0
            return super().forward(tokens, **options)._replace(logits=torch.nn.functional.one_hot(said, 64).float())

    model = Knows(RetrievalConfig().model("softmax", 0))
    assert set(claim.counted(model, task).values()) == {1.0}
    model.reach = 5
    found = claim.counted(model, task)
    assert (found["near"], found["far"], found["out of reach"]) == (1, 0, 0)
    assert 0 < found["all"] < 1
