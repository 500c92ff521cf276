"""What is done around flash-linear-attention, with its documented function written out; fla itself needs a GPU."""

import sys
from types import SimpleNamespace

import pytest
import torch

from regard import Heads, build
from regard.core.errors import UnsupportedError
from regard.engines.gpu import linear_fla


def chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=True):
    """q, k, v (batch, length, heads, dim), initial_state (batch, heads, dim, value), as fla 0.6 documents them."""
    assert output_final_state
    assert not normalize
    assert all(x.is_contiguous() for x in (q, k, v, initial_state))
    pairs = scale * torch.einsum("bihk,bjhk->bhij", q, k).tril()
    y = torch.einsum("bhij,bjhv->bihv", pairs, v) + scale * torch.einsum("bihk,bhkv->bihv", q, initial_state)
    return y, initial_state + torch.einsum("bjhk,bjhv->bhkv", k, v)


@pytest.fixture
def published(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.ops.linear_attn", SimpleNamespace(chunk_linear_attn=chunk_linear_attn))
    monkeypatch.setattr(linear_fla, "require", lambda: None)
    monkeypatch.setattr(linear_fla, "import_module", lambda name: sys.modules[name])


@pytest.mark.parametrize("options", [{}, {"normalise": False, "feature_map": "identity"}, {"rotary": True}])
def test_whole_and_in_pieces_it_is_the_chunked_form(published, options):
    heads = Heads(count=4, key_dim=8, value_dim=6, kv_count=2, causal=True)
    ours, theirs = build("linear", heads, **options), build("linear", heads, impl="fla", **options)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, count, 11, dim, generator=draw, dtype=torch.float64) for count, dim in ((4, 8), (2, 8), (2, 6))
    )
    key_mask = torch.ones(2, 11, dtype=torch.bool)
    key_mask[0, :3] = False
    expected = ours(q, k, v, key_mask=key_mask).values
    torch.testing.assert_close(theirs(q, k, v, key_mask=key_mask).values, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        theirs(q[:, :, 4:], k, v, key_mask=key_mask).values, expected[:, :, 4:], rtol=0, atol=1e-12
    )
    state, found = theirs.initial_state(2, dtype=torch.float64), []
    for piece in (slice(0, 5), slice(5, 6), slice(6, 11)):
        result = theirs(*(x[:, :, piece] for x in (q, k, v)), key_mask=key_mask[:, piece], state=state)
        state = result.state
        found.append(result.values)
    torch.testing.assert_close(torch.cat(found, 2), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("missing", ["package", "device"])
def test_it_is_refused_where_it_cannot_run(missing, monkeypatch):
    monkeypatch.setattr(linear_fla, "find_spec", lambda name: None if missing == "package" else name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match='impl="fla" needs'):
        build("linear", Heads(count=1, key_dim=4, causal=True), impl="fla")
