"""Every claim would hold of one thing and would not of another: each name, in the small form, in both directions."""

from collections.abc import Iterator, Mapping

import pytest

from evidence import claims
from evidence.claims._plateau import FINISHED
from regard import catalog, register
from tests.claims.stand_ins import (
    CALIBRATED,
    MECHANISMS,
    NAIVE,
    RUNNING,
    SOFT,
    Way,
    above,
    clock,
    distances,
    entropy,
    estimates,
    gains,
    landmarks,
    leave,
    lookup,
    needles,
    ponders,
    quiet,
    recalls,
    skewed,
    writing,
)

pytestmark = pytest.mark.study


@pytest.fixture(autouse=True)
def mechanisms() -> Iterator[None]:
    for cls in MECHANISMS:
        register(cls)
    yield
    for cls in MECHANISMS:
        catalog.unregister(cls.__name__.lower())


NEAR = {"linear": "softmax(scale=0.02)"}
"""as flat as linear attention, and recalls as flat softmax does"""

HOLDS: Mapping[str, Way] = {
    "additive_cost": Way(module={"processor_seconds": writing}),
    "attention_against_recurrence": Way(),
    "attention_concentration": Way(NEAR),
    "attention_rank_by_layer": Way(method={"spectra": skewed(0.9, 0.95)}),
    "code_retrieval": Way({"signed": "second"}),
    "distance_aware": Way(method={"accuracy": distances(0.99)}),
    "dot_product_variance": Way(),
    "eight_bits": Way({"spec": "harsh", "text_steps": 1, "windows": 1}),
    "entropy_over_length": Way(method={"entropy": entropy, "lookup": lookup}),
    "exit_guarantee": Way(method=CALIBRATED),
    "exits_against_fixed_depth": Way(method=leave(3.5)),
    "fusion_beats_concatenation": Way(),
    "graph_mixing": Way(),
    "hybrid_language_model": Way(method={"above": above(linear=0.2)}),
    "hybrid_recall": Way(),
    "information_loss": Way({"pairs": (8, 32, 128), "trials": 8}),
    "knn_lm_gain": Way(method=gains(0.02, 0.03, 0.04, 0.05, 0.07, 0.09)),
    "memory_evaluation_cost": Way(),
    "negative_features": Way({"trials": 8}),
    "normalisation_and_recall": Way(
        {"plain": "linear(feature_map=relu, normalise=False)", "normalised": SOFT, "sharpness": 16.0, "pairs": 32}
    ),
    "nystrom_against_performer": Way(method={"lines": landmarks(better=True)}),
    "outlier_activations": Way(method={"tails": quiet}),
    "ponder_difficulty": Way(method=ponders(1.0, 1.2, 2.0)),
    "post_softmax": Way({"post": "discerning"}),
    "randomized_attention_bias": Way(method={"estimates": estimates(("performer", "rfa"))}),
    "rank_of_attention": Way(),
    "rare_names": Way(),
    "rotary_decay": Way(),
    "routing_needle": Way(method={"trained": needles}),
    "shared_proposals": Way({"lara": "known(num_landmarks={count}, alpha={alpha})"}),
    "silent_head": Way(),
    "softmax_linear_crossover": Way(module={"processor_seconds": clock(softmax=1.5)}),
    "static_graph_attention": Way(),
}
FAILS: Mapping[str, Way] = {
    "additive_cost": Way({"dot": "additive"}, module={"processor_seconds": writing}),
    "attention_against_recurrence": Way({"attention": "local(window=8)"}),
    "attention_concentration": Way({"linear": SOFT, "sharpness": 0.5}),
    "attention_rank_by_layer": Way(method={"spectra": skewed(0.95, 0.9)}),
    "code_retrieval": Way({"relu": SOFT}),
    "distance_aware": Way(method={"accuracy": distances(0.4)}),
    "dot_product_variance": Way({"scaled": "softmax(scale=1.0)"}),
    "eight_bits": Way(),
    "entropy_over_length": Way({"scaled": SOFT}),
    "exit_guarantee": Way(method=NAIVE),
    "exits_against_fixed_depth": Way(method=leave(5.0)),
    "fusion_beats_concatenation": Way({"learned": False}),
    "graph_mixing": Way({"random": "local(window=4)"}),
    "hybrid_language_model": Way(method={"above": above(linear=0.2, by_layer=0.1)}),
    "hybrid_recall": Way(method=recalls({"linear / softmax": 0.5}), settings={"pairs": 2}),
    "information_loss": Way({"identity": SOFT, "pairs": (2, 4)}),
    "knn_lm_gain": Way(method=gains(0.05, 0.03, 0.02, 0.02, 0.01, 0.0)),
    "memory_evaluation_cost": Way({"contexts": (2, 4, 8), "segment": 1}),
    "negative_features": Way({"signed": "linear(feature_map=relu)"}),
    "normalisation_and_recall": Way(),
    "nystrom_against_performer": Way(method={"lines": landmarks(better=False)}),
    "outlier_activations": Way({"silent": SOFT}),
    "ponder_difficulty": Way(method=ponders(2.0, 2.0, 2.1)),
    "post_softmax": Way(),
    "randomized_attention_bias": Way({"performer": "randomized(num_samples={count})"}),
    "rank_of_attention": Way({"softmax": "linear"}),
    "rare_names": Way({"relu": SOFT}),
    "rotary_decay": Way({"position": "rotary(fraction=0.5)"}),
    "routing_needle": Way({"routing": "local(window=3)"}),
    "shared_proposals": Way(),
    "silent_head": Way({"silent": SOFT}),
    "softmax_linear_crossover": Way(module={"processor_seconds": clock(softmax=1 / 6)}),
    "static_graph_attention": Way({"dynamic": "graph"}),
}

UNFINISHED: Mapping[str, Way] = {
    "exits_against_fixed_depth": Way(method=leave(3.5), module={"change": lambda losses: 0.06}),
    "hybrid_language_model": Way(method={"above": above()}, module={"change": lambda losses: 0.06}),
    "hybrid_recall": Way(method=recalls({}, loss=[2.0] * 18 + [1.8] * 2)),
    "knn_lm_gain": Way(method=gains(0.1, nats=RUNNING)),
    "outlier_activations": Way(module={"change": lambda losses: 0.06}),
    "ponder_difficulty": Way(method=ponders(1.0, 1.2, 2.0, nats=RUNNING)),
    "shared_proposals": Way(module={"change": lambda losses, least: 0.06}),
}


def test_every_claim_is_tried_in_both_directions():
    assert sorted(HOLDS) == sorted(FAILS) == claims.names()


def replaced(name: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> Way:
    """The stand-ins, put in."""
    for attribute, other in way.module.items():
        monkeypatch.setattr(f"evidence.claims.{name}.{attribute}", other)
    for attribute, other in way.method.items():
        monkeypatch.setattr(type(claims.build(name)), attribute, other)
    return way


@pytest.mark.parametrize("name", claims.names())
@pytest.mark.parametrize(("ways", "verdict"), [(HOLDS, "holds"), (FAILS, "does not hold")], ids=["holds", "fails"])
def test_a_claim_would_hold_of_one_thing_and_not_of_another(name, ways, verdict, measured, monkeypatch):
    way = replaced(name, ways[name], monkeypatch)
    if way.module or way.method:  # what the tests that measure share must not hold these
        found = claims.measure(claims.build(name, tiny=True, settings=way.settings), range(3), tiny=True)
    else:
        found = measured(name, **way.settings)
    assert found["verdict"] == verdict, (found["reason"], [(one["title"], one["values"]) for one in found["findings"]])


def test_claims_on_plateaus_are_tried():
    assert sorted(UNFINISHED) == [name for name in claims.names() if FINISHED in claims.build(name).controls]


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_training_that_was_not_over_says_nothing(name, monkeypatch):
    """The small form does not look at this, so that it is judged as the full one is."""
    replaced(name, UNFINISHED[name], monkeypatch)
    claim = claims.build(name, tiny=True)
    found = claims.measure(claim, range(1))
    assert found["verdict"] == "inconclusive"
    assert FINISHED.title in [one["title"] for one in found["controls"] if not one["reached"]]
    small = claims.measure(claim, range(1), tiny=True)
    assert FINISHED.title not in [one["title"] for one in small["controls"]]
    assert claim.least_seeds >= 5


def test_fewer_seeds_than_a_claim_needs_conclude_nothing_but_in_the_small_form(monkeypatch):
    replaced("hybrid_recall", Way(method=recalls({})), monkeypatch)
    claim = claims.build("hybrid_recall", tiny=True, settings={"pairs": 2})
    found = claims.measure(claim, range(4))
    assert (found["verdict"], found["reason"]) == ("inconclusive", "4 of at least 5 seeds")
    assert claims.measure(claim, range(5))["verdict"] == "holds"
    assert claims.measure(claim, range(3), tiny=True)["verdict"] == "holds"
