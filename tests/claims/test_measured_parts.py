"""Parts of what claims measure, with answers that are known: text, tasks, graphs, ranks, moments, curves."""

import math
from types import SimpleNamespace

import pytest
import torch

from evidence import claims
from evidence.claims import attention_rank_by_layer
from evidence.claims._growth import between
from evidence.claims._sequences import MarkovText
from evidence.claims.attention_against_recurrence import chain, running_sum
from evidence.claims.attention_concentration import effective_keys
from evidence.claims.code_retrieval import direction, embed
from evidence.claims.graph_mixing import reached, second_eigenvalue
from evidence.claims.knn_lm_gain import half
from evidence.claims.ponder_difficulty import chased
from evidence.claims.randomized_attention_bias import moments
from evidence.claims.rank_of_attention import rank
from evidence.claims.rare_names import addresses, answer, places
from evidence.claims.rotary_decay import bound
from evidence.claims.softmax_linear_crossover import crossing
from regard import patterns as masks
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.retrieval import RetrievalConfig, sequences
from regard_lab.retrieval import Neighbours
from regard_lab.retrieval.evaluation import Looked
from regard_lab.tasks.recall import RecallTask

pytestmark = pytest.mark.study


def test_spectra_are_those_of_the_softmax_of_every_layer(monkeypatch):
    """Of two texts and three heads: the first layer looks at one key each, the second at all keys alike."""
    claim = claims.build("attention_rank_by_layer", tiny=True)
    sharp, flat = (SimpleNamespace(logits=x.expand(1, 3, 8, 8)) for x in (1e3 * torch.eye(8), torch.zeros(8, 8)))
    monkeypatch.setattr(attention_rank_by_layer, "read_vectors", lambda *_, **__: iter([[sharp, flat]] * 2))
    first, second = claim.spectra(0)
    assert first.tolist() == [pytest.approx([1.0] * 8)] * 6
    assert second.tolist() == [pytest.approx([1.0] + [0.0] * 7, abs=1e-6)] * 6


def test_bits_of_symbols_are_those_that_have_a_whole_context():
    """A model that knows the symbol behind each, and is the surer the later it is."""
    text, given = MarkovText(3, 4, draw=torch.Generator().manual_seed(1)), []
    symbols = torch.randint(text.symbols, (3, 9), generator=torch.Generator().manual_seed(0))

    def known(tokens):
        given.append(tokens)
        sure = torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)[None, :, None]
        return SimpleNamespace(logits=sure * torch.nn.functional.one_hot(symbols[:, 1:], text.symbols))

    nats = text.lost(known, symbols)
    assert [tokens.tolist() for tokens in given] == [symbols[:, :-1].tolist()]
    wanted = [math.log(math.exp(at) + text.symbols - 1) - at for at in range(text.order, 9)]
    assert nats.tolist() == [pytest.approx(wanted, rel=1e-5)] * 3


def test_a_setting_is_chosen_on_one_half_and_asked_on_the_other():
    """Neighbours know all of the first half and nothing of the second, which must lose then."""
    claim = claims.build("knn_lm_gain", tiny=True)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    found = torch.where(torch.arange(6) < 3, targets, 9)[:, None].expand(6, 16)
    neighbours = Neighbours(torch.ones(6, 16), torch.arange(6)[:, None].expand(6, 16), found)
    looked = Looked(torch.full((6,), 1.0).double(), neighbours, targets, torch.arange(6))
    first, second = (half(looked, first=which) for which in (True, False))
    assert (first.targets.tolist(), second.targets.tolist()) == ([0, 1, 2], [3, 0, 1])
    assert (first.neighbours.ids[:, 0].tolist(), second.neighbours.ids[:, 0].tolist()) == ([0, 1, 2], [3, 4, 5])
    assert (first.documents.tolist(), second.model.tolist()) == ([0, 1, 2], [1.0] * 3)
    most = max(claim.lams)
    assert claim.chosen(looked).lam == most
    assert claim.gained(looked) == pytest.approx(math.log2(1 - most))


def test_graphs_of_known_diameter():
    for length in range(2, 30):
        at = torch.arange(length)
        for size in (1, 2, 5):
            diameter, shares = reached(masks.window(size).mask(at, at))
            assert diameter == math.ceil((length - 1) / size)
            assert shares[-1] == 1
    star = masks.first(1).mask(at, at) | masks.window(0).mask(at, at)
    with pytest.raises(ValueError, match="is all that is ever reached"):
        reached(star)  # everybody sees the first; it sees nobody
    assert reached(star | star.mT)[0] == 2


def test_known_second_eigenvalues():
    ring = torch.eye(12, dtype=torch.bool)
    ring = ring | ring.roll(1, 0) | ring.roll(-1, 0)
    assert second_eigenvalue(ring) == pytest.approx((1 + 2 * math.cos(2 * math.pi / 12)) / 3, abs=1e-12)
    halves = masks.block(6).mask(torch.arange(12), torch.arange(12))
    assert second_eigenvalue(halves) == pytest.approx(1, abs=1e-12)  # two graphs never mix


def test_the_bound_is_the_published_sum_written_out():
    draw = generator(0)
    q, k = torch.randn(2, 3, 8, generator=draw, dtype=torch.float64)
    found = bound(q, k, 5)
    for row in range(3):
        h = [complex(q[row, c], q[row, c + 4]) * complex(k[row, c], -k[row, c + 4]) for c in range(4)]
        step = max(abs(b - a) for a, b in zip(h, [*h[1:], 0], strict=True))
        for distance in range(5):
            total = 0.0
            for count in range(1, 5):
                terms = [distance * 10000.0 ** (-c / 4) for c in range(count)]
                total += abs(complex(sum(map(math.cos, terms)), sum(map(math.sin, terms))))
            assert found[row, distance].item() == pytest.approx(step * total, rel=1e-12)


def test_the_longest_chain():
    assert running_sum(5) == 5
    x = torch.ones(3, requires_grad=True)
    side = x * 2
    assert chain((side.exp() + side).sum()) == 4
    assert chain(x.sum()) == 1


def test_markov_text_follows_its_probabilities():
    text = MarkovText(2, 3, draw=generator(0))
    sample = text.sample(4000, 12, generator(1))
    counts = torch.zeros(3, 3, 3)
    for a, b, c in zip(sample[:, 2:-2].flatten(), sample[:, 3:-1].flatten(), sample[:, 4:].flatten(), strict=True):
        counts[a, b, c] += 1
    share = counts / counts.sum(-1, keepdim=True)
    # 5 standard deviations of a share of the rarest context
    assert (share.flatten(0, 1) - text.probability).abs().max() < 5 * (0.25 / counts.sum(-1).min()) ** 0.5
    nats = text.nats(sample[:1])
    expected = [-math.log(text.probability[3 * a + b, c]) for a, b, c in sample[0].unfold(0, 3, 1).tolist()]
    torch.testing.assert_close(nats[0], torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_rank_that_is_known():
    a, b = torch.randn(2, 30, 5, generator=generator(0), dtype=torch.float64)
    assert rank(torch.linalg.svdvals(a @ b.mT)) == 5


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


def test_between_points_of_a_curve():
    assert between(([1.0, 10.0, 1000.0], [8.0, 4.0, 1.0]), 100.0) == pytest.approx(2.0, rel=1e-12)
    assert between(([10.0, 1.0], [1.0, 10.0]), 100.0) == pytest.approx(0.1, rel=1e-12)


def test_crossings():
    lengths = (10.0, 100.0, 1000.0)
    flat = lengths, [5.0, 5.0, 5.0]
    assert crossing((lengths, [1.0, 2.0, 4.0]), flat) == math.inf
    assert crossing((lengths, [6.0, 7.0, 8.0]), flat) == 0
    assert crossing((lengths, [6.0, 2.5, 10.0]), flat) == pytest.approx(100 * 10**0.5, rel=1e-9)


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


def test_needles_answer_their_questions():
    claim = claims.build(
        "routing_needle", settings={"keys": 5, "values": 3, "pairs": 3, "front": 7, "gap": 4, "fillers": 8}
    )
    tokens, answers = claim.sequences(6, generator(0))
    assert tokens.shape == (6, 7 + 4 + 4, 2)
    for row, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        told = {key: value for key, value in row[:7] if value < 3}
        assert len(told) == 3
        assert max(told) < 5
        assert all(5 <= what < 13 and value == 3 for what, value in row[7:11])
        assert [told[key] for key, _ in row[11:]] == wanted
        assert all(value == 3 for _, value in row[11:])


def test_pointers_are_followed_as_often_as_they_say():
    tokens, targets, far = chased(20, symbols=5, hops=2, queries=6, draw=generator(0))
    for row, wanted, hops in zip(tokens.tolist(), targets.tolist(), far.tolist(), strict=True):
        f = {token // 5: token % 5 for token in row[:5]}
        for query, answered, count in zip(row[5:], wanted[5:], hops, strict=True):
            label, at = divmod(query - 25, 5)
            assert label == count
            for _ in range(count):
                at = f[at]
            assert answered == at
