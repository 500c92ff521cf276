"""The training-free capacity test: the published table, what scale does to it, and what cannot matter."""

import math

import pytest
import torch

import regard
from regard.core.attention import generator
from regard.core.errors import ConfigError, UnsupportedError
from regard_lab.benchmark import capacity
from regard_lab.benchmark.capacity import CapacityConfig, decoded, measure, recall

IDENTITY = "linear(feature_map=identity, normalise=False)"
TAYLOR = "linear(feature_map=taylor)"
RELU = "linear(feature_map=relu)"
# SPEC K1, at the scales at which these numbers come out: mechanism -> sharpness, recall at 8, 32 and 128 pairs
PUBLISHED = {
    "softmax": (8.0, (1.0, 1.0, 1.0)),
    IDENTITY: (1.0, (1.0, 0.99, 0.46)),
    TAYLOR: (4 / math.sqrt(32), (1.0, 1.0, 0.85)),
    "performer(num_features=256)": (8.0, (0.91, 0.72, 0.41)),
    "efficient": (32.0, (0.94, 0.58, 0.22)),
    RELU: (1.0, (0.96, 0.39, 0.06)),
    "linear": (4.0, (0.33, 0.07, 0.015)),
}


@pytest.mark.parametrize("spec", PUBLISHED)
def test_the_published_table_comes_out(spec):
    sharpness, wanted = PUBLISHED[spec]
    for pairs, share in zip((8, 32, 128), wanted, strict=True):
        trials = {8: 48, 32: 16, 128: 8}[pairs]
        got, error = recall(decoded(spec, pairs, sharpness=sharpness, trials=trials))
        assert abs(got - share) < 4 * error + 0.03, (pairs, got, share)
        assert error < 0.04


def test_decoding_written_out():
    """By loops over queries and keys, for a map whose recall is neither 0 nor 1."""
    found = decoded(RELU, 12, sharpness=3.0, dim=8, trials=2, seed=5)
    for trial in range(2):
        draw = generator(5, "capacity", 12, 8, trial)
        keys, values = (torch.randn(12, 8, generator=draw) for _ in range(2))
        keys, values = (x / x.norm(dim=1, keepdim=True) for x in (keys, values))
        for i in range(12):
            out = torch.zeros(8)
            for j in range(12):
                out += (keys[i].clamp_min(0) @ keys[j].clamp_min(0)) * values[j]
            assert found[trial, i] == max(range(12), key=lambda j: float(out @ values[j]))
    assert 0.1 < recall(found)[0] < 1


@pytest.mark.parametrize("feature_map", ["relu", "taylor", "elu_plus_one", "sigmoid"])
def test_normalising_changes_no_answer(feature_map):
    """SPEC K2 (2): a positive factor of each output cannot change which value is nearest."""
    for pairs in (8, 64):
        one, other = (
            decoded(f"linear(feature_map={feature_map}, normalise={normalise})", pairs, sharpness=4.0, trials=6)
            for normalise in (True, False)
        )
        assert torch.equal(one, other)
        assert recall(one)[0] > 0


def test_a_softmax_over_channels_keeps_the_largest_channel_and_loses_the_nearest_value():
    """SPEC K5: monotone, so an argmax over channels stays; but it adds the same direction to every output."""
    q, k, v = torch.randn(3, 1, 1, 20, 8, generator=torch.Generator().manual_seed(0))
    post = f"{TAYLOR[:-1]}, post='softmax')"
    one, other = (regard.attend(q, k, v, spec, causal=True).argmax(-1) for spec in (TAYLOR, post))
    assert torch.equal(one, other)
    plain, squashed = (recall(decoded(spec, 32, sharpness=2.0, trials=6))[0] for spec in (TAYLOR, post))
    assert plain > 0.99
    assert squashed < 0.3


@pytest.mark.parametrize("spec", ["softmax", "linear", "performer(num_features=16)"])
def test_a_last_token_finds_what_a_question_from_outside_finds(spec, monkeypatch):
    across = decoded(spec, 16, sharpness=4.0, trials=3)
    described = capacity.describe

    def alone(text):
        info = described(text)
        return type(info)(**{**vars(info), "supports": type(info.supports)(causal=True, prefix=True)})

    monkeypatch.setattr(capacity, "describe", alone)
    assert torch.equal(decoded(spec, 16, sharpness=4.0, trials=3), across)


def test_mechanisms_that_share_queries_and_keys_or_take_no_past_are_asked_by_a_last_token():
    assert recall(decoded("lsh(num_buckets=1, rounds=1)", 16, sharpness=64.0, trials=3))[0] > 0.95
    whole = "regard_lab.published.lsh_published:LshPublished(num_buckets=1, rounds=1, bucket_size=32)"
    assert recall(decoded(whole, 16, sharpness=64.0, trials=3))[0] > 0.95


def test_a_window_finds_what_it_reaches():
    found = decoded("local(window=4)", 12, sharpness=16.0, trials=4)
    right = found == torch.arange(12)
    assert right[:, 8:].all()
    assert right[:, :8].double().mean() < 0.4


def test_the_sign_of_features_is_worth_more_than_their_number():
    signed, rectified = (recall(decoded(spec, 64, trials=8))[0] for spec in (IDENTITY, RELU))
    assert signed > 3 * rectified


def test_results_name_the_best_sharpness_and_the_state():
    config = CapacityConfig(
        specs=("softmax", "linear", "linformer(rank=4)"), pairs=(4, 8), sharpness=(0.5, 8.0), trials=4
    )
    found = measure(config)
    assert len(found["rows"]) == 3 * 2 * 2
    assert found["best"]["linear"] == 8.0
    sizes = {(row["spec"], row["pairs"]): row["state_bytes"] for row in found["rows"]}
    assert sizes["softmax", 8] == 2 * sizes["softmax", 4] == 8 * 64 * 4
    assert sizes["linear", 4] == sizes["linear", 8] == 32 * 33 * 4
    assert sizes["linformer(rank=4)", 8] is None
    assert all(one["reached"] for one in found["controls"])
    assert {one["expected"] for one in found["controls"]} == {1.0, 1 / 4, 1 / 8}


def test_the_controls_can_miss(monkeypatch):
    monkeypatch.setattr(capacity, "CONTROLS", ("linear", "softmax"))
    found = measure(CapacityConfig(specs=("softmax",), pairs=(16,), sharpness=(8.0,), trials=3))
    assert [one["reached"] for one in found["controls"]] == [False, False]


def test_bad_plans_are_refused():
    with pytest.raises(ConfigError, match=r"pairs must be at least 2, got 1(.|\n)*trials must be at least 2, got 1"):
        CapacityConfig(pairs=(8, 1), trials=1)
    with pytest.raises(ConfigError, match="sharpness must be positive, got 0"):
        CapacityConfig(sharpness=(0.0,))
    with pytest.raises(ConfigError, match="specs must not be empty"):
        CapacityConfig(specs=())
    with pytest.raises(UnsupportedError, match="blockwise can neither attend to another sequence nor be causal"):
        decoded("blockwise", 4)


def test_a_wrong_mechanism_is_refused_before_any_other_is_measured():
    told: list[str] = []
    for wrong, error in (("softmx", ConfigError), ("blockwise(block_size=2)", UnsupportedError)):
        with pytest.raises(error):
            measure(CapacityConfig(specs=("linear", wrong), pairs=(4,), sharpness=(8.0,), trials=2), tell=told.append)
    assert told == []


def test_a_mechanism_with_inputs_is_asked_as_its_gates_begin():
    """Gates of one half: key j of 4 weighs 2^(j - 3) exp of its logit, which no logit of 64 can fail to drown."""
    assert recall(decoded("forgetting", 4, sharpness=64.0, trials=4))[0] == 1.0
    newest = decoded("forgetting", 4, sharpness=1e-3, trials=4)
    assert (newest == 3).all()  # equal logits: the gates alone decide, and the last pair weighs most
