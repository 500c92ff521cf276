"""Put a wrong thing into claims on costs and on approximations: none may still hold."""

import pytest

from evidence.claims.nystrom_against_performer import NystromAgainstPerformer
from tests.claims.stand_ins import landmarks

pytestmark = pytest.mark.study


def test_a_stack_that_keeps_every_layer_is_not_flat(verdicts):
    verdict, found, missed = verdicts("reversible_memory", reversible="residual")
    assert (verdict, missed) == ("does not hold", [])
    assert found["reversible: peak of activations, deepest / shallowest"] == "does not hold"
    assert found["deepest: peak, residual / reversible, over layers"] == "does not hold"
    assert found["reversible: bytes kept, deepest / shallowest"] == "does not hold"


def test_landmarks_that_are_worse_than_features(verdicts, monkeypatch):
    monkeypatch.setattr(NystromAgainstPerformer, "lines", landmarks(better=False))
    _, found, missed = verdicts("nystrom_against_performer", texts=1)
    assert missed == []
    assert found["MiniLM: error, Nyström / Performer at equal operations"] == "does not hold"


def test_landmarks_in_the_place_of_features_miss_their_controls(verdicts):
    """They do not fall as features do, and win nothing over themselves."""
    verdict, _, missed = verdicts("nystrom_against_performer", performer="nystrom(num_landmarks={count})")
    assert verdict == "inconclusive"
    assert "again and again: 1 if Performer's error is below Nyström's at equal operations" in missed
