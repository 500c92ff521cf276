"""Laws of position schemes, and of the layers that apply them."""

import torch
from torch import Tensor

from regard import position
from regard.core.attention import Heads, registered_name
from regard.core.bias import ScoreBias
from regard.layer import AttentionLayer
from regard.position import Position
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here, randn
from regard.testing.registry import check
from tests.laws.definitions import DEFINITIONS

HEADS, KEY_DIM, DIM = 6, 8, 12
"""six heads: no power of two, where ALiBi's slopes are not in order"""
LENGTH = 140
"""beyond T5's last bucket and Shaw's clipping"""
QUERIES = (0, 1, 17, 70, LENGTH - 1)


def _scheme(part: type[Position], causal: bool) -> Position:
    """In float64, with weights off their initial values."""
    scheme = part(Heads(count=HEADS, key_dim=KEY_DIM, causal=causal, max_length=LENGTH), DIM).to(here()).double()
    with torch.no_grad():
        for name, weight in scheme.named_parameters():
            weight.add_(0.3 * randn(*weight.shape, seed=name, dtype=weight.dtype))
    return scheme


def _logits(scheme: Position, q: Tensor, k: Tensor) -> Tensor:
    """The logits that a layer around scaled dot products adds up, for all pairs."""
    slots = torch.arange(LENGTH, device=here())
    turned, keys = scheme.transform(q, k, slots, slots)
    bias = scheme.bias(q, 1 - LENGTH, LENGTH - 1) or ScoreBias()
    return turned @ keys.mT / KEY_DIM**0.5 + bias.logits(slots, slots)


def _published(part: type[Position]) -> str:
    """The name of the scheme whose definition holds: its own, or that of the scheme it derives from."""
    return next((name for base in part.__mro__ if (name := registered_name(base)) in DEFINITIONS), "")


@check(("absolute", "positions_are_added"), kind=Position)
def published_logits(part: type[Position]) -> None:
    """Logits are those of the published formula, pair by pair, up to a constant of the query."""
    name = _published(part)
    require(bool(name), f"there is no definition of {registered_name(part)} to compare with")
    q, k = (randn(1, HEADS, LENGTH, KEY_DIM, seed=seed, dtype=torch.float64) for seed in ("q", "k"))
    for causal in (True, False):
        scheme = _scheme(part, causal)
        with torch.no_grad():
            logits = _logits(scheme, q, k)[0]
            for head in range(HEADS):
                for i in QUERIES:
                    keys = range(i + 1 if causal else LENGTH)
                    wanted = [DEFINITIONS[name](scheme, q[0, head, i], k[0, head, j], head, i, j) for j in keys]
                    expected = torch.tensor(wanted, dtype=torch.float64, device=here())
                    got = logits[head, i, : len(keys)]
                    what = f"{causal=}, head {head}, query {i}"
                    assert_close(got - got[0], expected - expected[0], tolerance=1e-10, what=what)


@check(("absolute", "positions_are_added"), ("not biased", "published_logits"), kind=Position)
def columns_are_distances(part: type[Position]) -> None:
    """Column c of a bias belongs to distance high - c, whatever range of distances is asked for."""
    for causal in (True, False):
        scheme = _scheme(part, causal)
        q = randn(1, HEADS, 5, KEY_DIM, seed="q", dtype=torch.float64)
        low = 0 if causal else -20
        with torch.no_grad():
            whole = scheme.bias(q, low, 40)
            for first, last in ((low, 7), (3, 40), (5, 5), (max(low, -2), 2)):
                piece = scheme.bias(q, first, last)
                assert whole is not None
                assert piece is not None
                require(piece.high == last, f"asked for distances {first} to {last}, the bias begins at {piece.high}")
                columns = slice(40 - last, 40 - first + 1)
                for name in ("curve", "relative"):
                    wide, narrow = getattr(whole, name), getattr(piece, name)
                    if wide is not None:
                        what = f"{name}, distances {first} to {last}"
                        assert_close(narrow, wide[:, columns], tolerance=1e-12, what=what)


@check(("not absolute", "published_logits"), kind=Position)
def positions_are_added(part: type[Position]) -> None:
    """An absolute scheme adds to a hidden state what belongs to its position alone, to each another vector."""
    scheme = _scheme(part, causal=True)
    x = randn(2, LENGTH, DIM, seed="hidden", dtype=torch.float64)
    at = torch.arange(LENGTH, device=here())
    with torch.no_grad():
        added = scheme.embed(torch.zeros_like(x[:1]), at)[0]
        require((added[:, None] - added).abs().amax(-1).fill_diagonal_(1).min().item() > 1e-6, "two positions are one")
        per_row = torch.stack([at.flip(0), (3 * at + 5) % LENGTH])
        for what, places in (("slots", at), ("a later piece", at[70:]), ("positions of each row", per_row)):
            piece = x[:, : places.shape[-1]]
            assert_close(scheme.embed(piece, places), piece + added[places], tolerance=1e-12, what=what)


@check(kind=AttentionLayer)
def values_know_no_position(part: type[AttentionLayer]) -> None:
    """A relative scheme changes who is looked at, never what is seen: with one key, its value comes out as it is."""
    x = randn(1, 9, 16, seed="hidden", dtype=torch.float64)
    for name in position.names():
        if position.position_class(name).absolute:
            continue
        layer = part(16, "softmax", heads=2, position=name, causal=False, max_length=16).to(here()).double().eval()
        with torch.no_grad():
            for at in (0, 5):
                keep = torch.arange(9, device=here())[None] == at
                got = layer(x, key_mask=keep).hidden
                assert layer.projections.value is not None
                value = layer.projections.output(layer.projections.value(x[:, at : at + 1])).expand_as(got)
                assert_close(got, value, tolerance=1e-12, what=f"{name}, the key in slot {at} alone")


@check(kind=AttentionLayer)
def keys_move_with_queries(part: type[AttentionLayer]) -> None:
    """A rotation of queries and keys by the same number of slots changes nothing; of the queries alone, something."""
    layer = part(16, "softmax", heads=2, position="rotary", causal=False).to(here()).double().eval()
    x, slots = randn(1, 9, 16, seed="hidden", dtype=torch.float64), torch.arange(9, device=here())
    with torch.no_grad():
        still = layer(x).hidden
        assert_identical(layer(x, positions=slots).hidden, still, what="positions that are the slots")
        assert_close(layer(x, positions=slots + 100).hidden, still, tolerance=1e-10, what="100 slots later")
        stretched = layer(x, positions=3 * slots).hidden
    require((stretched - still).abs().max().item() > 1e-3, "distances three times as large change nothing")
