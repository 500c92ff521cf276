"""Claims on spans, confidences and the own key: with a wrong thing in the place of the right one."""

import itertools

import numpy as np
import pytest
import torch

from evidence import claims
from evidence.claims._plateau import lasting
from evidence.claims.diagonal_masked import LOST
from evidence.claims.spans_by_layer import adaptive, spans_of
from evidence.claims.three_confidences import asked
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.exits import exits_of, leaving_at
from regard_lab.benchmark.rereading import Rereading
from regard_lab.calibration import calibrate
from regard_lab.tasks.base import IGNORE
from tests.claims.depth_stand_ins import looks, saves, unseen
from tests.claims.memory_stand_ins import OVER

pytestmark = pytest.mark.study


def judged(name, way, monkeypatch, **settings):
    """Verdict by finding, and the controls that were missed, of five seeds with stand-ins in the place of trainings."""
    for attribute, other in way.items():
        monkeypatch.setattr(type(claims.build(name)), attribute, other)
    found = claims.measure(claims.build(name, tiny=True, settings=settings), range(5))
    verdicts = {one["title"]: one["verdict"] for one in found["findings"]}
    return verdicts, [one["title"] for one in found["controls"] if not one["reached"]]


def test_spans_that_fall_from_layer_to_layer(monkeypatch):
    found, missed = judged("spans_by_layer", looks(8.0, 1.0, 4.0), monkeypatch)
    assert missed == []
    assert found["letters: (top - bottom) / (top + bottom) span"] == "does not hold"


@pytest.mark.parametrize(("near", "far", "missed"), [(1, 0, "far"), (0, 1, "near")])
def test_spans_that_always_or_never_rise_are_no_measurement(near, far, missed, monkeypatch):
    rising, falling = [1.0, 9.0], [9.0, 1.0]
    way = looks(2.0, 4.0, 8.0) | {
        "settled": lambda self, first, seed: rising if (near if first == "near" else not far) else falling
    }
    _, controls = judged("spans_by_layer", way, monkeypatch)
    other = {"near": "far", "far": "near"}[missed]
    assert controls == [f"1 if a {missed} look-up, then a {other} one is seen"]


def test_an_order_that_goes_with_more_steps_says_nothing(monkeypatch):
    rising = looks(2.0, 4.0, 8.0)["learned"]
    falling = looks(8.0, 4.0, 2.0)["learned"]
    way = looks(1.0) | {
        "learned": lambda self, steps, seed: (rising if steps == self.steps else falling)(self, steps, seed)
    }
    _, controls = judged("spans_by_layer", way, monkeypatch)
    assert controls == [lasting(1.0).title]


def test_spans_without_a_price_stay_open():
    """What the controls ask of the spans is due to the price, and not to how they begin."""
    claim = claims.build("spans_by_layer", tiny=True, settings={"learn": 2, "settle": 2, "task_price": 0.0})
    whole = claim.symbols + claim.gap + 2 * claim.queries
    for first in ("near", "far"):
        assert claim.settled(first, 0) == pytest.approx([whole, whole])


def test_spans_are_those_of_the_layers_in_their_order():
    model = LanguageModel(ModelConfig(vocab_size=4, dim=8, heads=2, layers=2, attention=("adaptive_span(max_span=8)",)))
    with torch.no_grad():
        adaptive(model)[0].span.copy_(torch.tensor([0.0, 0.5]))
        adaptive(model)[1].span.fill_(1.0)
    assert spans_of(model) == [2.0, 8.0]


@pytest.mark.parametrize("first", ["near", "far"])
def test_two_look_ups_are_answered_by_the_table(first):
    claim = claims.build("spans_by_layer")
    size, answered = claim.symbols, 0
    tokens, targets = claim.looked_up(first, 20, generator(0, "rows"))
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        f = {(token - 1) // size: (token - 1) % size for token in row[:size]}
        assert row[size : size + claim.gap] == [0] * claim.gap
        asked_for = [token - 1 - size**2 for token in row[size + claim.gap :]]
        for at in range(size + claim.gap, len(row)):
            if (at - size - claim.gap) % 2 == 0:
                continue
            a, b = asked_for[at - size - claim.gap - 1], asked_for[at - size - claim.gap] - size
            assert wanted[at] == (f[(a + b) % size] if first == "near" else (f[a] + f[b]) % size)
            answered += 1
        assert sum(one != IGNORE for one in wanted) == claim.queries
    assert answered == 20 * claim.queries


def test_a_gap_that_saves_least(monkeypatch):
    found, missed = judged("three_confidences", saves(3.0, 2.0, 2.5), monkeypatch)
    assert missed == []
    assert found["blocks, gap of the softmax - saturation"] == "does not hold"
    assert found["blocks, gap of the softmax - classifier"] == "does not hold"


def test_confidences_that_are_no_better_than_the_reverse_or_than_knowing(monkeypatch):
    _, missed = judged("three_confidences", saves(4.0, 4.5, 4.5), monkeypatch)
    assert "1 if the least sure leaving first take more blocks" in missed
    _, missed = judged("three_confidences", saves(0.5, 3.0, 3.0, OVER), monkeypatch)
    assert missed == ["1 if exits that know the answers win"]


@pytest.fixture(scope="module")
def decoder():
    claim = claims.build("three_confidences", tiny=True)
    return claim, claim.trained(10, 0)[0]


@pytest.mark.parametrize("confidence", ["softmax", "saturation", "classifier"])
def test_exits_go_by_the_confidence_that_is_asked(decoder, confidence):
    """Against a decoder that was made with it, whose weights are the same."""
    _, model = decoder
    tokens = torch.randint(27, (20, 17), generator=generator(1, "tokens"))
    own, steps = exits_of(model).confidence, []
    with torch.no_grad(), asked(model, confidence), leaving_at(model, 1.0):
        sure = Rereading(model, tokens).sure
    threshold = float(sure[sure.isfinite()].quantile(0.7))
    spec = f"early_exit(confidence={confidence}, exits=aligned, weights=rising, threshold={threshold})"
    made = LanguageModel(ModelConfig(**{**vars(model.config), "depth": spec})).eval()
    made.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for turned in (False, True):
            with asked(model, confidence, turned=turned), leaving_at(model, threshold):
                steps.append(model(tokens[:, :-1]).steps)
        assert torch.equal(steps[0], made(tokens[:, :-1]).steps)
    assert not torch.equal(*steps)
    assert exits_of(model).confidence == own


def test_exits_that_know_leave_where_all_later_exits_agree(decoder):
    claim, model = decoder
    passages = torch.randint(27, (10, claim.length + 1), generator=generator(2, "tokens"))
    tokens, layers = passages[:, :-1], model.config.layers
    with torch.no_grad():
        model.train()
        exits = model.hidden(tokens, targets=passages[:, 1:]).losses
        model.eval()
        assert "depth.exits" in exits
        alone = [model(tokens, depths=torch.full_like(tokens, n)).logits.argmax(-1) for n in range(1, layers + 1)]
    depths = torch.ones_like(tokens)
    for i, j in itertools.product(*(range(size) for size in tokens.shape)):
        says = [int(one[i, j]) for one in alone]
        depths[i, j] = min(n for n in range(1, layers + 1) if len({*says[n - 1 :]}) == 1)
    loss, blocks = claim.knowing(model, passages.numpy())
    assert blocks == pytest.approx(float(depths.double().mean()))
    with torch.no_grad():
        got = model(tokens, depths=depths).logits.argmax(-1)
    assert loss == pytest.approx(float((got != alone[-1])[:, -1].double().mean()))


def test_thresholds_are_certified_by_the_calibration():
    claim = claims.build("three_confidences")
    losses = (np.random.default_rng(0).random((300, 1)) < np.array([0.0, 0.02, 0.06, 0.3])).astype(float)
    for risk in (0.05, 0.1, 0.5):
        got = calibrate(losses, [0.9, 0.8, 0.7, 0.6], risk=risk, test="binomial").threshold
        wanted = None if got is None else [0.9, 0.8, 0.7, 0.6].index(got)
        assert claim.chosen(losses, risk) == wanted
    assert claim.chosen(1 - 0 * losses, 0.1) is None


def test_a_course_goes_from_all_blocks_to_few(decoder):
    claim, model = decoder
    seen, passages = (
        torch.randint(27, (40, claim.length + 1), generator=generator(3, name)).numpy() for name in ("seen", "new")
    )
    for confidence in claim.confidences:
        course = claim.course(model, confidence, seen, passages)
        assert course.losses.shape == (40, len(course.blocks))
        assert all(one >= other for one, other in itertools.pairwise(course.blocks))
        assert course.blocks[0] > course.blocks[-1]
        np.testing.assert_allclose(course.losses.mean(0), course.risks)


def test_an_own_key_that_is_missed_and_one_before_that_is_not(monkeypatch):
    found, missed = judged("diagonal_masked", unseen(own=0.1), monkeypatch)
    assert missed == []
    assert found["bits, without the own key - with all"] == "does not hold"
    _, missed = judged("diagonal_masked", unseen(before=0.01), monkeypatch)
    assert missed == ["1 if masking the letter before is seen"]


def test_a_difference_that_twice_the_steps_change_says_nothing(monkeypatch):
    def trained(self, mechanism, steps, seed):
        own = 0.2 * (mechanism == self.own and steps > self.steps)
        return 3.0 + own + (mechanism == self.before) + 0.001 * seed, OVER

    _, missed = judged("diagonal_masked", {"trained": trained}, monkeypatch)
    assert missed == [lasting(1.0).title]


def test_decoders_that_see_nothing_but_their_own_key_are_caught(monkeypatch):
    """Letters that come twice each: what is next is said by the letter before and not by the last one alone."""
    monkeypatch.setattr("evidence.claims._letters.text", lambda split: torch.arange(3000) // 2 % 3 + 1)
    claim = claims.build("diagonal_masked", tiny=True, settings={"learning_rate": 2e-2})
    alone, whole = (claim.trained(rule, 60, 0)[0] for rule in ("pattern(rule='window(0)')", claim.everything))
    assert alone - whole > LOST


@pytest.mark.parametrize(("rule", "distances"), [("own", {0}), ("before", {1})])
def test_rules_leave_out_what_they_name(rule, distances):
    from regard.patterns import parse

    text = getattr(claims.build("diagonal_masked"), rule).partition("rule='")[2].removesuffix("')")
    i = torch.arange(9)
    wanted = torch.tensor([[abs(a - b) not in distances for b in range(9)] for a in range(9)])
    assert torch.equal(parse(text).mask(i, i), wanted)
