"""Parts of what claims measure, with answers that are known, where numbers stand in for them in other tests."""

import math
from types import SimpleNamespace

import pytest
import torch

from evidence import claims
from evidence.claims import attention_rank_by_layer, memory_by_fine_tuning
from evidence.claims._remembering import bits
from evidence.claims._sequences import MarkovText
from evidence.claims.knn_lm_gain import half
from regard_lab.retrieval import Neighbours
from regard_lab.retrieval.evaluation import Looked

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


def test_quarters_are_the_newest_and_oldest_of_both_kinds_of_slots():
    claim = claims.build("attention_by_slot_age", tiny=True, settings={"compressed": 8, "length": 4})
    mass = torch.tensor([1.0, 3.0, 0, 0, 0, 0, 40.0, 60.0, 500.0, 0, 0, 7000.0])  # oldest first
    assert claim.quarters(mass) == (7000, 500, 50, 2)


def test_bits_behind_are_those_of_later_targets_alone():
    """A model that knows every target but the first three."""
    text = torch.randint(4, (2, 8), generator=torch.Generator().manual_seed(0))

    class Known:
        config = SimpleNamespace(remembers=True)

        def __call__(self, tokens):
            sure = 100.0 * (torch.arange(tokens.shape[1]) >= 3)[None, :, None]
            return SimpleNamespace(logits=sure * torch.nn.functional.one_hot(text[:, 1:], 4), losses={})

    assert bits(Known(), text, behind=3) == pytest.approx(0, abs=1e-6)
    assert bits(Known(), text, behind=2) == pytest.approx(2 / 5)


def test_a_memory_is_asked_where_there_is_something_in_it(monkeypatch):
    """Of rows of segments the first one is left out, in which no memory holds anything."""
    claim, asked = claims.build("memory_by_fine_tuning", tiny=True), []
    monkeypatch.setattr(type(claim), "train", lambda *_, **__: [1.0] * 40)
    monkeypatch.setattr(type(claim), "asked", lambda *_: {})
    monkeypatch.setattr(memory_by_fine_tuning, "bits", lambda model, text, behind: asked.append(behind) or 1.0)
    claim.observe(0)
    assert asked == [claim.segment] * 4
