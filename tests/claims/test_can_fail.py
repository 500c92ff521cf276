"""Put a wrong thing in the place of the right one: no claim may still hold."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, final

import pytest
from torch import Tensor

from regard import Info, Supports, catalog, register
from regard.attention.dense.softmax import Softmax
from regard.core.attention import Attended, Attention

pytestmark = pytest.mark.study

EVERYTHING = Supports(bidirectional=True, causal=True, cross=True, key_mask=True)


class _Inner(Attention):
    """Template of the wrong mechanisms: softmax with something done to it."""

    def setup(self) -> None:
        self.inner: Attention = Softmax(self.heads)

    def attend(self, q, k, v, call):
        return Attended(self.average(q, k, v, call.key_mask))

    def average(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self.inner(q, k, v, key_mask=key_mask).values

    def reference(self, q, k, v, call):
        raise AssertionError


@final
class OneMind(_Inner):
    """All heads look where the first one looks."""

    default_info = Info(title="One mind", source="this test", supports=EVERYTHING)

    def average(self, q, k, v, key_mask):
        return super().average(q[:, :1].expand_as(q), k[:, :1].expand_as(k), v, key_mask)


class _Stored(_Inner):
    """Template: takes the options of `quantized`."""

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)

    bits: int = 8
    """how many are kept"""
    store: str = "int8"
    """as what"""


@final
class Unrounded(_Stored):
    """Says that it rounds, and does not."""

    default_info = Info(title="Unrounded", source="this test", supports=EVERYTHING)


@final
class Coarse(_Stored):
    """Makes all weights equal where keys and values are rounded too."""

    default_info = Info(title="Coarse", source="this test", supports=EVERYTHING)

    def setup(self) -> None:
        equal = "softmax(scale=1e-9)"
        rounded = f"quantized(bits={self.bits}, store=float)"
        self.inner = catalog.build(equal if self.store == "int8" else rounded, self.heads)


@pytest.fixture(autouse=True)
def wrong_mechanisms() -> Iterator[None]:
    classes = (OneMind, Unrounded, Coarse)
    for cls in classes:
        register(cls)
    yield
    for name in ("one_mind", "unrounded", "coarse"):
        catalog.unregister(name)


def test_scaling_that_does_not_scale(verdicts):
    verdict, found, missed = verdicts("dot_product_variance", scaled="softmax(scale=1.0)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["scaled: variance at the largest dim"] == "does not hold"
    assert found["scaled: variance ~ dim to the power of"] == "does not hold"
    assert found["scaled: gradient, largest dim / smallest"] == "does not hold"


def test_logits_that_are_scaled_where_they_should_not_be(verdicts):
    verdict, found, missed = verdicts("dot_product_variance", plain="softmax")
    assert verdict == "inconclusive"
    assert missed == ["variance of logits along one axis"]
    assert found["unscaled: gradient, largest dim / smallest"] == "does not hold"


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"static": "additive"}, "graph: accuracy - 1/keys"),
        ({"static": "softmax"}, "graph: queries with one heaviest key"),
        ({"dynamic": "graph"}, "additive: accuracy"),
    ],
)
def test_a_lookup_by_the_wrong_score(verdicts, settings, failing):
    verdict, found, missed = verdicts("static_graph_attention", **settings)
    assert (verdict, missed) == ("does not hold", [])
    assert found[failing] == "does not hold"


def test_a_lookup_that_nothing_solves(verdicts):
    verdict, _, missed = verdicts("static_graph_attention", dot="uniform")
    assert (verdict, missed) == ("inconclusive", ["accuracy of the dot product"])


def test_heads_that_look_at_the_same_place(verdicts):
    verdict, found, missed = verdicts("diverse_heads", spec="one_mind")
    assert (verdict, missed) == ("does not hold", [])
    assert found["error of two heads, two tokens wanted"] == "does not hold"


def test_heads_that_look_nowhere(verdicts):
    verdict, _, missed = verdicts("diverse_heads", spec="uniform")
    assert (verdict, missed) == ("inconclusive", ["error of one head, one token wanted"])


def test_a_head_that_cannot_be_silent(verdicts):
    verdict, found, missed = verdicts("silent_head", silent="softmax")
    assert (verdict, missed) == ("does not hold", [])
    assert found["softmax_plus_one: error, no mark"] == "does not hold"


def test_a_softmax_that_can_be_silent(verdicts):
    verdict, found, missed = verdicts("silent_head", plain="softmax_plus_one")
    assert (verdict, missed) == ("does not hold", [])
    assert found["softmax: error, no mark + a mark, times keys + 1"] == "does not hold"


def test_a_factor_that_does_nothing(verdicts):
    _, found, missed = verdicts("entropy_over_length", scaled="softmax")
    assert missed == []
    assert found["growth / softmax's growth, sd 2: reduced"] == "does not hold"
    assert found["growth / softmax's growth, sd 1: reduced"] == "does not hold"


def test_a_mean_in_place_of_a_kernel(verdicts):
    verdict, found, missed = verdicts("kernel_regression", mean="gaussian")
    assert (verdict, missed) == ("does not hold", [])
    assert found["test error, mean / w = 1"] == "does not hold"


UNTRAINED = {"text_steps": 1, "windows": 1}
"""for the model of text, where recall and random input decide"""


def test_rounding_that_does_not_round(verdicts):
    verdict, _, missed = verdicts("eight_bits", spec="unrounded", **UNTRAINED)
    assert verdict == "inconclusive"
    assert "error at 8 bits / 16 bits" in missed


def test_rounding_that_is_too_coarse(verdicts):
    verdict, found, missed = verdicts("eight_bits", spec="coarse", **UNTRAINED)
    assert (verdict, missed) == ("does not hold", [])
    assert found["8 bits: recall lost"] == "does not hold"
