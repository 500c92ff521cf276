"""Claims on hashing and on shared projections: with a wrong thing in the place of the right one."""

import math

import pytest
import torch

from evidence import claims
from evidence.claims._hashes import all_of, any_of
from evidence.claims.lsh_collisions import ANGLES, vectors
from evidence.claims.lsh_recall import LshRecall
from evidence.claims.shared_query_key import SharedQueryKey
from regard import Heads, build
from regard.attention.routed.lsh import Buckets, Lsh
from regard.core.attention import generator
from regard.models import LanguageModel
from tests.claims.stand_ins import read

pytestmark = pytest.mark.study


def judged(name, **settings):
    """Each finding of the small form by its verdict."""
    found = claims.measure(claims.build(name, tiny=True, settings=settings), range(3), tiny=True)
    assert [one["title"] for one in found["controls"] if not one["reached"]] == []
    return {one["title"]: one["verdict"] for one in found["findings"]}


@pytest.mark.parametrize(
    ("attribute", "other", "failing"),
    [
        ("STEEP", (any_of(8), all_of(8)), "near - far: AND of 8, then OR of 8, over one hash"),
        (
            "one_hash",
            lambda name, angle, buckets: (1 + math.cos(angle)) / 2,
            "two buckets: share - formula, furthest",
        ),
        (
            "collision_probability",
            lambda angle, buckets: (1 - angle / math.pi) ** math.log2(buckets),
            "sixteen buckets: share - formula, furthest",
        ),
        ("sensitivity", lambda p, rules: p, "two buckets, AND, OR, XOR: share - formula, furthest"),
        ("sensitivity", lambda p, rules: p, "sixteen buckets, AND, OR, XOR: share - formula, furthest"),
        ("share", lambda met: [0.5] * len(ANGLES), "two buckets: least fall of the share to the next angle"),
    ],
)
def test_other_formulas_and_rules(attribute, other, failing, monkeypatch):
    monkeypatch.setattr(f"evidence.claims.lsh_collisions.{attribute}", other)
    found = claims.measure(claims.build("lsh_collisions", tiny=True), range(3), tiny=True)
    assert {one["title"]: one["verdict"] for one in found["findings"]}[failing] == "does not hold"


def test_the_vectors_are_at_their_angles():
    x, others = vectors(16, generator(0))
    cosines = torch.nn.functional.cosine_similarity(x[None].double(), others.double(), dim=-1)
    assert cosines.acos().div(math.pi).tolist() == pytest.approx(ANGLES, abs=1e-4)
    assert others.norm(dim=-1).max() > 2 * others.norm(dim=-1).min()


@pytest.mark.parametrize(
    ("buckets", "failing"),
    [(4096, "eight rounds: mass"), (1, "mass, sixteen rounds - one")],
)
def test_hashes_that_find_too_little_or_all_at_once(buckets, failing):
    found = judged("lsh_recall", hashed=f"lsh(num_buckets={buckets}, rounds={{rounds}})")
    assert found[failing] == "does not hold"


def test_weights_that_need_the_other_keys(monkeypatch):
    def accuracy(self, model, tokens, answers, *, cut=False):
        return float(model.mechanisms[0].buckets == 1 and not cut)

    monkeypatch.setattr(LshRecall, "accuracy", accuracy)
    assert judged("lsh_recall")["eight rounds: accuracy lost"] == "does not hold"


def test_attention_that_is_cut_answers_by_chance():
    """A model that lives by its attention alone, and says so when this gives 0."""
    claim = claims.build("lsh_recall", tiny=True)
    assert claim.observe(3).values["cut"] < 0.1


def test_mass_and_nearest_keys_by_hand():
    """Twelve tokens, of which the later six ask, or two of one row and one of the other; one key at a time."""
    claim = claims.build("lsh_recall", tiny=True, settings={"rounds": (1, 3)})
    x = 3 * torch.randn(2, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    mechanism = build("lsh(num_buckets=4, rounds=3)", Heads(count=1, key_dim=4, causal=True))
    buckets = mechanism.decisions(x, x).keys
    assert isinstance(claim, LshRecall)
    for asking in ([[6, 7, 8, 9, 10, 11]] * 2, [[3, 9], [5]]):
        masses, nearest = [0.0, 0.0], [0.0, 0.0]
        for row in range(2):
            part = 1 / (2 * len(asking[row]))
            for i in asking[row]:
                logits = [float(x[row, 0, i] @ x[row, 0, j] / x[row, 0, j].norm()) / 2 for j in range(i)]
                odds = [math.exp(logit) for logit in logits]
                best = max(range(i), key=lambda j: logits[j])
                for place, rounds in enumerate((1, 3)):
                    met = [bool((buckets[row, 0, i, :rounds] == buckets[row, 0, j, :rounds]).any()) for j in range(i)]
                    masses[place] += part * sum(odd for odd, one in zip(odds, met, strict=True) if one) / sum(odds)
                    nearest[place] += part * met[best]
        asked = torch.zeros(2, 12, dtype=torch.bool)
        for row, places in enumerate(asking):
            asked[row, places] = True
        got = claim.shares(x, mechanism, None if len(asking[1]) == 6 else asked)
        assert got[0] == pytest.approx(masses, abs=1e-5)
        assert got[1] == pytest.approx(nearest, abs=1e-9)


def test_a_shared_projection_that_loses(monkeypatch):
    monkeypatch.setattr(SharedQueryKey, "bits", read(0.1))
    assert set(judged("shared_query_key").values()) == {"does not hold"}


def test_buckets_of_another_sequence_are_those_of_the_row_before(monkeypatch):
    claim = claims.build("lsh_recall", tiny=True)
    assert isinstance(claim, LshRecall)
    model = LanguageModel(claim.config(claim.spec(1), 0)).eval()
    tokens = torch.randint(64, (3, 8), generator=generator(0))
    seen: list[Buckets] = []

    def average(self, q, k, v, codes, *others, **options):
        seen.append(Buckets(*codes))
        return torch.zeros_like(v)

    monkeypatch.setattr(Lsh, "average", average)
    with torch.no_grad():
        claim.elsewhere(model, tokens, tokens)
    own, others = seen
    assert torch.equal(others.keys, own.keys[[2, 0, 1]])
    assert not torch.equal(others.keys, own.keys)
