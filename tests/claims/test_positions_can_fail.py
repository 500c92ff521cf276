"""Claims on positions, fusion, convolution and recurrence: with a wrong thing in the place of the right one."""

import math

import pytest
import torch
from torch import Tensor, nn

from evidence import claims
from evidence.claims._sequences import MarkovText
from evidence.claims.attention_against_recurrence import chain, running_sum
from evidence.claims.rotary_decay import bound
from regard.core.attention import generator
from regard.integrations.convolution import ConvolutionAttention
from regard_lab.benchmark.fitting import train

pytestmark = pytest.mark.study


def test_codes_that_are_not_sinusoids(verdicts):
    verdict, found, missed = verdicts("sinusoid_offsets", position="learned")
    assert (verdict, missed) == ("does not hold", [])
    assert set(found.values()) == {"does not hold"}


@pytest.mark.parametrize(
    ("position", "failing"),
    [
        ("rotary(fraction=0.5)", "mean score of equal pairs, far / at distance 0"),
        ("rotary(base=1e8)", "mean score of equal pairs, far / at distance 0"),
        ("sinusoidal", "mean score of equal pairs, far / at distance 0"),  # leaves the scores as they are
    ],
)
def test_rotations_that_are_not_the_published_ones(verdicts, position, failing):
    verdict, found, missed = verdicts("rotary_decay", position=position)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


class Ringless(ConvolutionAttention):
    """Without the keys of zeros around the image."""

    def forward(self, image: Tensor) -> Tensor:
        self.border = (0, 0)
        return super().forward(image)


class Crossed(ConvolutionAttention):
    """Takes rows for columns."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image.mT).mT


def test_a_convolution_without_its_border(verdicts):
    verdict, found, missed = verdicts("convolution_equality", attention=f"{__name__}:Ringless")
    assert (verdict, missed) == ("does not hold", [])
    assert found["the same, pixels at the border"] == "does not hold"


def test_a_convolution_with_its_sides_exchanged(verdicts):
    assert verdicts("convolution_equality", attention=f"{__name__}:Crossed")[0] != "holds"


def test_a_convolution_that_is_not_sharp(verdicts):
    verdict, found, _ = verdicts("convolution_equality", alpha=10.0)
    assert verdict == "does not hold"
    assert found["largest difference, of the largest output"] == "does not hold"


def test_a_fusion_that_weighs_all_alike(verdicts):
    verdict, found, missed = verdicts("fusion_beats_concatenation", learned=False)
    assert (verdict, missed) == ("does not hold", [])
    assert set(found.values()) == {"does not hold"}


def test_distances_that_are_not_clipped(verdicts):
    verdict, found, missed = verdicts("shaw_unseen_lengths", clipped="shaw(max_distance=64)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["not clipped - clipped: bits at the longest"] == "does not hold"


def test_sinusoids_in_the_place_of_linear_biases(verdicts):
    positions = ("alibi", "rotary", "t5_bias", "sinusoidal")
    verdict, found, missed = verdicts("extrapolation", positions=positions)
    assert verdict != "holds"
    assert missed == []
    assert found["sinusoidal - alibi: bits at the longest"] == "does not hold"


def test_a_layer_that_knows_no_distance(verdicts):
    verdict, found, missed = verdicts("distance_aware", aware="softmax")
    assert (verdict, missed) == ("does not hold", [])
    assert set(found.values()) == {"does not hold"}


def test_attention_that_sees_its_neighbours_only(verdicts):
    verdict, found, missed = verdicts("attention_against_recurrence", attention="local(window=8)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["attention: right at the longest distance"] == "does not hold"


def test_attention_that_looks_at_nothing():
    """In the small form attention does not reach the convolution: what is missing grows in every seed."""
    missing = []
    for attention in ("softmax", "uniform"):
        settings = {"attention": attention, "examples": (1024,)}
        claim = claims.build("attention_against_convolution", tiny=True, settings=settings)
        measured = claims.measure(claim, range(3), tiny=True)
        missing.append([seen["values"]["loss many"] for seen in measured["observations"]])
    assert all(nothing > right + 0.01 for right, nothing in zip(*missing, strict=True))


def test_a_mechanism_that_knows_every_distance():
    """The finding that a function of the distance does not reach: labels for each distance do."""
    claim = claims.build("distance_aware", tiny=True, settings={"aware": "shaw(max_distance=8)"})
    measured = claims.measure(claim, range(2), tiny=True)
    assert [seen["values"]["exact gain"] for seen in measured["observations"]] == [0, 0]


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


def test_fitting_finds_the_least_squares():
    draw = generator(0)
    x = torch.randn(50, 3, generator=draw)
    wanted = torch.tensor([1.0, -2.0, 0.5])
    weight = nn.Parameter(torch.zeros(3))
    train([weight], lambda step: ((x @ weight - x @ wanted) ** 2).mean(), steps=300, learning_rate=0.05)
    torch.testing.assert_close(weight.detach(), wanted, rtol=0, atol=0.02)
