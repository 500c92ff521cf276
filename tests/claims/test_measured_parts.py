"""Parts of what claims measure, with answers that are known, where numbers stand in for them in other tests."""

import math
from types import SimpleNamespace

import pytest
import torch

from regard import claims
from regard.claims import attention_rank_by_layer

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
    claim, given = claims.build("hybrid_language_model", tiny=True, settings={"order": 3}), []
    symbols = torch.randint(claim.symbols, (3, 9), generator=torch.Generator().manual_seed(0))

    def known(tokens):
        given.append(tokens)
        sure = torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)[None, :, None]
        return SimpleNamespace(logits=sure * torch.nn.functional.one_hot(symbols[:, 1:], claim.symbols))

    nats = claim.nats(known, symbols)
    assert [tokens.tolist() for tokens in given] == [symbols[:, :-1].tolist()]
    wanted = [math.log(math.exp(at) + claim.symbols - 1) - at for at in range(claim.order, 9)]
    assert nats.tolist() == [pytest.approx(wanted, rel=1e-5)] * 3
