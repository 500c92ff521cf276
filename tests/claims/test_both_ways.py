"""Every claim would hold of one thing and would not of another: each name, in the small form, in both directions."""

from collections.abc import Iterator, Mapping

import pytest

from evidence import claims
from evidence.claims._hashes import all_of, any_of
from evidence.claims._plateau import FINISHED
from evidence.claims._units import OVER
from regard import catalog, register
from tests.claims.depth_stand_ins import CALIBRATED, NAIVE, leave, looks, ponders, saves, unseen
from tests.claims.gated_stand_ins import AFTER, elsewhere, letters
from tests.claims.memory_stand_ins import (
    ASKED,
    OWN,
    RUNNING,
    by_age,
    by_distance,
    by_length,
    by_memory,
    by_published,
    by_size,
    in_turn,
    untrained,
)
from tests.claims.stand_ins import (
    MECHANISMS,
    SOFT,
    Way,
    above,
    bits,
    clock,
    dense_too,
    distances,
    entropy,
    estimates,
    falling,
    fastest,
    grid,
    landmarks,
    learned,
    longer,
    lookup,
    lost,
    masked,
    needed,
    needles,
    quiet,
    read,
    recalls,
    right,
    skewed,
    synthesized,
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
ALIBI = longer(sinusoidal=0.5, rotary=0.2, t5_bias=0.1, far_alibi=1)
LOSSLESS = "streaming(budget=64)"
"""a cache that holds all"""

HOLDS: Mapping[str, Way] = {
    "additive_cost": Way(module={"processor_seconds": writing}),
    "attention_against_convolution": Way(method={"accuracy": learned(0.5, 0.99)}),
    "attention_against_recurrence": Way(),
    "attention_by_slot_age": Way(module=untrained(), method=by_age(1.5)),
    "attention_concentration": Way(NEAR),
    "attention_rank_by_layer": Way(method={"spectra": skewed(0.9, 0.95)}),
    "blockwise_memory": Way(),
    "code_retrieval": Way({"signed": "second"}),
    "commitment": Way(method={"trained": needles(lambda spec, weight: 0.9 if weight else 0.6)}),
    "compressive_against_recent": Way(method=by_memory(2.9)),
    "convolution_equality": Way(),
    "diagonal_masked": Way(method=unseen(own=0.0)),
    "distance_aware": Way(method={"accuracy": distances(0.99)}),
    "distances_do_not_help": Way(method={"near": by_distance(far=0.0)}),
    "diverse_heads": Way({"spec": "blended"}),
    "dot_product_variance": Way(),
    "eight_bits": Way({"spec": "harsh", "text_steps": 1, "windows": 1}),
    "entropy_over_length": Way(method={"entropy": entropy, "lookup": lookup}),
    "entropy_scaled_gau_transfer": Way(method=elsewhere(relu_squared=0.3, entropy_scaled=0.1)),
    "etc_lookup": Way(method={"accuracy": masked}),
    "eviction_question_last": Way(dict.fromkeys(("h2o", "key_norm"), "random(budget={budget})")),
    "exit_guarantee": Way(method=CALIBRATED),
    "exits_against_fixed_depth": Way(method=leave(3.5)),
    "extrapolation": Way(method=ALIBI),
    "flash_against_gau": Way(module={"learned": letters()}, method=AFTER),
    "fusion_beats_concatenation": Way(),
    "gated_unit_half": Way(module={"learned": letters()}),
    "gaussian_heads": Way(method={"trained": grid}),
    "graph_mixing": Way(),
    "hybrid_language_model": Way(method={"above": above(linear=0.2)}),
    "hybrid_recall": Way(),
    "importance_sampling": Way(method={"self_normalised": falling}),
    "information_loss": Way({"pairs": (8, 32, 128), "trials": 8}),
    "kernel_regression": Way({"datasets": 60}),
    "knn_lm_gain": Way(module=untrained(), method={"gained": in_turn(0.02, 0.03, 0.04, 0.05, 0.07, 0.09), **OWN}),
    "linear_attention_forms": Way(module={"processor_seconds": fastest("cumsum")}),
    "longer_memory": Way(method=by_length(-0.01)),
    "lsh_collisions": Way({"hashes": 96_000}),
    "lsh_recall": Way({"hashed": "lsh(num_buckets=2, rounds={rounds})"}),
    "memory_against_size": Way(method=by_size(4.9)),
    "memory_by_fine_tuning": Way(module={**untrained(), "bits": in_turn(2.6, 2.5, 2.4, 2.45)}, method=ASKED),
    "memory_evaluation_cost": Way(),
    "negative_features": Way({"trials": 8}),
    "normalisation_and_recall": Way(
        {"plain": "linear(feature_map=relu, normalise=False)", "normalised": SOFT, "sharpness": 16.0, "pairs": 32}
    ),
    "nystrom_against_performer": Way(method={"lines": landmarks(better=True)}),
    "outlier_activations": Way(method={"tails": quiet}),
    "ponder_difficulty": Way(method=ponders(1.0, 1.2, 2.0)),
    "post_softmax": Way({"post": "discerning"}),
    "published_memory": Way(method=by_published(4.9)),
    "quantized_keys": Way(),
    "random_feature_variance": Way({"redraws": 60_000}, method={"needed": needed}),
    "randomized_attention_bias": Way(method={"estimates": estimates(("performer", "rfa"))}),
    "rank_of_attention": Way(),
    "rare_names": Way(),
    "receptive_field": Way(),
    "reversible_memory": Way(),
    "rotary_decay": Way(),
    "routing_needle": Way(
        method={"trained": needles(lambda spec, weight: 0.5 if spec == "local(window=200)" else 1.0)}
    ),
    "segments_equal_full_context": Way(),
    "shared_proposals": Way({"lara": "known(num_landmarks={count}, alpha={alpha})"}),
    "shared_query_key": Way(method={"bits": read(0.0)}),
    "shaw_unseen_lengths": Way(module=lost(0.1)),
    "silent_head": Way(),
    "sinusoid_offsets": Way(),
    "softmax_linear_crossover": Way(module={"processor_seconds": clock(softmax=1.5)}),
    "spans_by_layer": Way(method=looks(2.0, 4.0, 8.0)),
    "sparse_transformer_patterns": Way(method={"accuracy": right(fixed_images=0.5, strided_text=0.5)}),
    "sparsity_regularisers": Way({"linear": "kinds(kind={kind})"}),
    "static_graph_attention": Way(),
    "synthesizer_tasks": Way(method=synthesized(0.25, -0.1)),
    "three_confidences": Way(method=saves(2.0, 3.0, 2.5)),
    "transformer_as_rnn": Way(module={"processor_seconds": clock()}),
    "window_schedule": Way(method={"bits": bits(growing=3.0, equal=3.1, reverse=3.2)}),
}
FAILS: Mapping[str, Way] = {
    "additive_cost": Way({"dot": "additive"}, module={"processor_seconds": writing}),
    "attention_against_convolution": Way(method={"accuracy": learned(0.5, 0.8)}),
    "attention_against_recurrence": Way({"attention": "local(window=8)"}),
    "attention_by_slot_age": Way(module=untrained(), method=by_age(0.5)),
    "attention_concentration": Way({"linear": SOFT, "sharpness": 0.5}),
    "attention_rank_by_layer": Way(method={"spectra": skewed(0.95, 0.9)}),
    "blockwise_memory": Way(module={"blockwise": dense_too}),
    "code_retrieval": Way({"relu": SOFT}),
    "commitment": Way(method={"trained": needles(lambda spec, weight: 0.6)}),
    "compressive_against_recent": Way(method=by_memory(3.1)),
    "convolution_equality": Way({"alpha": 10.0}),
    "diagonal_masked": Way(method=unseen(own=0.1)),
    "distance_aware": Way(method={"accuracy": distances(0.4)}),
    "distances_do_not_help": Way({"steps": 40}, method={"near": by_distance(far=1e4)}),
    "diverse_heads": Way({"spec": "together"}),
    "dot_product_variance": Way({"scaled": "softmax(scale=1.0)"}),
    "eight_bits": Way(),
    "entropy_over_length": Way({"scaled": SOFT}),
    "entropy_scaled_gau_transfer": Way(method=elsewhere(relu_squared=0.1, entropy_scaled=0.3)),
    "etc_lookup": Way(),
    "eviction_question_last": Way(dict.fromkeys(("streaming", "h2o", "snapkv", "key_norm"), LOSSLESS)),
    "exit_guarantee": Way(method=NAIVE),
    "exits_against_fixed_depth": Way(method=leave(5.0)),
    "extrapolation": Way(method=longer(sinusoidal=0.0, rotary=0.0, alibi=0.5)),
    "flash_against_gau": Way(module={"learned": letters(mixed_chunk_2=0.1)}, method=AFTER),
    "fusion_beats_concatenation": Way({"learned": False}),
    "gated_unit_half": Way(module={"learned": letters(relu_squared_2=0.1)}),
    "gaussian_heads": Way({"learned": False}),
    "graph_mixing": Way({"random": "local(window=4)"}),
    "hybrid_language_model": Way(method={"above": above(linear=0.2, by_layer=0.1)}),
    "hybrid_recall": Way(method=recalls({"linear / softmax": 0.5}), settings={"pairs": 2}),
    "importance_sampling": Way({"normalised": "uniform"}),
    "information_loss": Way({"identity": SOFT, "pairs": (2, 4)}),
    "kernel_regression": Way({"mean": "gaussian"}),
    "knn_lm_gain": Way(module=untrained(), method={"gained": in_turn(0.05, 0.03, 0.02, 0.02, 0.01, 0.0), **OWN}),
    "linear_attention_forms": Way(module={"processor_seconds": fastest("chunked")}),
    "longer_memory": Way(method=by_length(0.01)),
    "lsh_collisions": Way(module={"STEEP": (any_of(8), all_of(8))}),
    "lsh_recall": Way({"hashed": "lsh(num_buckets=256, rounds={rounds})"}),
    "memory_against_size": Way(method=by_size(5.2)),
    "memory_by_fine_tuning": Way(module={**untrained(), "bits": in_turn(2.6, 2.7, 2.4, 2.45)}, method=ASKED),
    "memory_evaluation_cost": Way({"contexts": (2, 4, 8), "segment": 1}),
    "negative_features": Way({"signed": "linear(feature_map=relu)"}),
    "normalisation_and_recall": Way(),
    "nystrom_against_performer": Way(method={"lines": landmarks(better=False)}),
    "outlier_activations": Way({"silent": SOFT}),
    "ponder_difficulty": Way(method=ponders(2.0, 2.0, 2.1)),
    "post_softmax": Way(),
    "published_memory": Way(method=by_published(5.1)),
    "quantized_keys": Way({"spread": 0.5}),
    "random_feature_variance": Way({"positive": "hyperbolic_random"}),
    "randomized_attention_bias": Way({"performer": "randomized(num_samples={count})"}),
    "rank_of_attention": Way({"softmax": "linear"}),
    "rare_names": Way({"relu": SOFT}),
    "receptive_field": Way({"local": "local(window=4)"}),
    "reversible_memory": Way({"reversible": "residual"}),
    "rotary_decay": Way({"position": "rotary(fraction=0.5)"}),
    "routing_needle": Way({"routing": "local(window=3)"}),
    "segments_equal_full_context": Way(
        {"memory": "compressive(length=4, compressed=1, rate=4, function=mean, loss=none)"}
    ),
    "shared_proposals": Way(),
    "shared_query_key": Way(method={"bits": read(0.1)}),
    "shaw_unseen_lengths": Way({"clipped": "shaw(max_distance=64)"}),
    "silent_head": Way({"silent": SOFT}),
    "sinusoid_offsets": Way({"position": "learned"}),
    "softmax_linear_crossover": Way(module={"processor_seconds": clock(softmax=1 / 6)}),
    "spans_by_layer": Way(method=looks(8.0, 4.0, 2.0)),
    "sparse_transformer_patterns": Way(method={"accuracy": right(strided_images=0.5)}),
    "sparsity_regularisers": Way({"linear": "kinds(kind={kind}, good=none)"}),
    "static_graph_attention": Way({"dynamic": "graph"}),
    "synthesizer_tasks": Way(method=synthesized(0.9, -0.1)),
    "three_confidences": Way(method=saves(3.0, 2.0, 2.5)),
    "transformer_as_rnn": Way({"linear": SOFT}, module={"processor_seconds": clock()}),
    "window_schedule": Way(method={"bits": bits(growing=3.0, equal=3.1, reverse=3.05)}),
}

UNFINISHED: Mapping[str, Way] = {
    "attention_against_convolution": Way(method={"accuracy": learned(0.5, 0.99, change=0.06)}),
    "attention_by_slot_age": Way(module=untrained(RUNNING), method=by_age(1.5)),
    "commitment": Way(method={"trained": needles(lambda spec, weight: 0.9 if weight else 0.6, change=0.06)}),
    "compressive_against_recent": Way(method=by_memory(2.9, RUNNING)),
    "diagonal_masked": Way(method=unseen(RUNNING)),
    "entropy_scaled_gau_transfer": Way(method=elsewhere(relu_squared=0.3, change=0.02)),
    "etc_lookup": Way(method={"accuracy": lambda self, spec, seed, *, told=True: (1.0, ([1], [2.0] * 18 + [1.8] * 2))}),
    "eviction_question_last": Way(module={"change": lambda losses: 0.06}),
    "exits_against_fixed_depth": Way(method=leave(3.5), module={"change": lambda losses: 0.06}),
    "flash_against_gau": Way(module={"learned": letters(change=0.02)}, method=AFTER),
    "gated_unit_half": Way(module={"learned": letters(change=0.02)}),
    "gaussian_heads": Way(module={"change": lambda losses: 0.06}),
    "hybrid_language_model": Way(method={"above": above()}, module={"change": lambda losses: 0.06}),
    "hybrid_recall": Way(method=recalls({}, loss=[2.0] * 18 + [1.8] * 2)),
    "knn_lm_gain": Way(module=untrained(RUNNING), method={"gained": in_turn(0.1), **OWN}),
    "longer_memory": Way(method=by_length(-0.01, RUNNING)),
    "memory_by_fine_tuning": Way(module={**untrained(RUNNING), "bits": in_turn(2.6)}, method=ASKED),
    "outlier_activations": Way(module={"change": lambda losses: 0.06}),
    "ponder_difficulty": Way(method=ponders(1.0, 1.2, 2.0, nats=RUNNING)),
    "shared_proposals": Way(module={"change": lambda losses, least: 0.06}),
    "spans_by_layer": Way(method=looks(2.0, 4.0, 8.0, nats=RUNNING)),
    "synthesizer_tasks": Way(method=synthesized(0.25, -0.1, loss=[2.0] * 18 + [1.8] * 2)),
    "three_confidences": Way(method=saves(2.0, 3.0, 2.5, nats=RUNNING)),
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
    assert sorted(UNFINISHED) == [name for name in claims.names() if {FINISHED, OVER} & {*claims.build(name).controls}]


@pytest.mark.parametrize("name", UNFINISHED)
def test_a_training_that_was_not_over_says_nothing(name, monkeypatch):
    """The small form does not look at this, so that it is judged as the full one is."""
    replaced(name, UNFINISHED[name], monkeypatch)
    claim = claims.build(name, tiny=True)
    found = claims.measure(claim, range(1))
    assert found["verdict"] == "inconclusive"
    assert {FINISHED.title, OVER.title} & {one["title"] for one in found["controls"] if not one["reached"]}
    small = claims.measure(claim, range(1), tiny=True)
    assert not {FINISHED.title, OVER.title} & {one["title"] for one in small["controls"]}
    assert claim.least_seeds >= 5


def test_claims_whose_trainings_are_made_twice_as_long_take_five_seeds():
    judged = [claims.build(name) for name in claims.names()]
    twice = [each for each in judged if any(control.value.startswith("lasting") for control in each.controls)]
    assert len(twice) >= 7
    assert all(each.least_seeds >= 5 for each in twice), [type(each).__name__ for each in twice if each.least_seeds < 5]


def test_fewer_seeds_than_a_claim_needs_conclude_nothing_but_in_the_small_form(monkeypatch):
    replaced("hybrid_recall", Way(method=recalls({})), monkeypatch)
    claim = claims.build("hybrid_recall", tiny=True, settings={"pairs": 2})
    found = claims.measure(claim, range(4))
    assert (found["verdict"], found["reason"]) == ("inconclusive", "4 of at least 5 seeds")
    assert claims.measure(claim, range(5))["verdict"] == "holds"
    assert claims.measure(claim, range(3), tiny=True)["verdict"] == "holds"
