"""Put a wrong thing into the claims on what is chosen by content: none may still hold."""

import pytest
import torch

from evidence import claims
from evidence.claims.quantized_keys import kmeans
from regard.core.attention import generator

pytestmark = pytest.mark.study


def test_clusters_that_have_a_width_are_not_exact(verdicts):
    verdict, found, missed = verdicts("quantized_keys", spread=0.5)
    assert (verdict, missed) == ("does not hold", [])
    assert found["clusters, as many codes: error"] == "does not hold"
    assert found["linear form against dense softmax over codes: difference"] == "holds"


def test_attention_that_rounds_no_key_has_not_the_known_errors(verdicts):
    verdict, found, missed = verdicts("quantized_keys", spec="softmax")
    assert (verdict, missed) == (
        "inconclusive",
        ["random keys, a code at each: error", "one code: error / that of equal weights"],
    )
    assert found["linear form against dense softmax over codes: difference"] == "does not hold"


def test_means_of_clusters_are_found():
    """Four clusters that do not touch; and a code that gathers nothing stays."""
    centres = 10 * torch.eye(4, dtype=torch.float64)
    around = 0.1 * torch.randn(5, 4, 4, generator=generator(0), dtype=torch.float64)
    found = kmeans((centres + around).flatten(0, 1), 4)
    wanted = (centres + around).mean(0)
    assert torch.allclose(found[torch.cdist(wanted, found).argmin(1)], wanted, atol=1e-12)
    assert kmeans(centres[:1].expand(3, 4), 2).isfinite().all()


def test_a_window_that_routes_nothing_finds_no_needle(verdicts):
    verdict, found, missed = verdicts("routing_needle", routing="local(window=3)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["routing: accuracy, far"] == "does not hold"
    assert found["accuracy, far, routing - window"] == "does not hold"


def test_a_window_that_sees_the_needle_answers(verdicts):
    verdict, found, missed = verdicts("routing_needle", window="local(window=300)")
    assert (verdict, missed) == ("does not hold", [])
    assert found["window: accuracy, far - 1/values"] == "does not hold"


def test_one_cluster_costs_what_full_attention_costs(verdicts):
    verdict, found, missed = verdicts("routing_needle", routing="routing(num_clusters=1)", window="softmax")
    assert (verdict, missed) == ("does not hold", [])
    assert found["operations, routing / softmax"] == "does not hold"


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


def test_no_weight_is_no_commitment():
    """Equal trainings; the strong loss is seen."""
    claim = claims.build("commitment", tiny=True, settings={"weight": 0.0})
    found = claim.observe(3).values
    assert (found["distance"], found["gain"]) == (1, 0)
    strong, without = (claim.trained(claim.codes, 3, weight=weight).own for weight in (1.0, 0.0))
    assert strong < without
