"""Longformer's and BigBird's self-attention in transformers compute what our layers do, on random weights."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard import AttentionLayer
from regard.attention.sparse.bigbird import Bigbird

pytestmark = pytest.mark.external
WHY = "transformers is not installed; `make external`"
transformers = pytest.importorskip("transformers", reason=WHY)
longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer", reason=WHY)
big_bird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird", reason=WHY)

DIM, HEADS = 24, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(module):
    with torch.no_grad():
        for at, weight in enumerate(module.parameters()):
            weight.copy_(0.4 * draw(*weight.shape, seed=at))
    return module


def copied(pairs):
    with torch.no_grad():
        for own, theirs in pairs:
            own.weight.copy_(theirs.weight)
            own.bias.copy_(theirs.bias)


def heads_of(layer, *given, **more):
    """The averages of every head: the output projection is the identity."""
    with torch.no_grad():
        layer.projections.output.weight.copy_(torch.eye(DIM))
        layer.projections.output.bias.zero_()
    return layer(*given, **more).hidden


def close(a, b, tolerance=1e-9):
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("length", [24, 29, 48])
@pytest.mark.parametrize("marked", [(), (0,), (0, 7, 20)])
@pytest.mark.parametrize("padded", [0, 5])
def test_longformer_is_that_of_transformers(length, marked, padded):
    """Also where its model pads, at lengths that are no multiple of its chunks; rows have different global tokens."""
    window = 4
    config = transformers.LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * window], attention_probs_dropout_prob=0.0
    )
    theirs = randomised(longformer.LongformerSelfAttention(config, layer_id=0).double()).eval()
    spec = f"longformer(window={window}, num_global=0)"
    ours = AttentionLayer(DIM, spec, heads=HEADS, causal=False, projections="global", bias=True).double()
    rows = ours.projections.global_rows
    names = ("query", "key", "value")
    copied((getattr(ours, name), getattr(theirs, name)) for name in names)
    copied((getattr(rows, name), getattr(theirs, f"{name}_global")) for name in names)
    x, keep, marks = draw(2, length, DIM, seed=9), torch.ones(2, length, dtype=torch.bool), torch.zeros(2, length)
    keep[1, length - padded :] = False
    for at in marked:
        marks[0, at] = marks[1, at // 2] = 1
    mask = torch.where(keep, 10000.0 * marks, -10000.0)
    missing = -length % (2 * window)
    mask = F.pad(mask, (0, missing), value=-10000.0)
    expected = theirs(
        F.pad(x, (0, 0, 0, missing)),
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=mask > 0,
        is_global_attn=bool((mask > 0).any()),
    )[0][:, :length]
    found = heads_of(ours, x, key_mask=keep, marks=marks.long())
    close(found[keep], expected[keep], tolerance=2e-6)  # its softmax is in float32 whatever it is given


def bigbird(length, size, count, *, training):
    whole = length + -length % size
    config = transformers.BigBirdConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        block_size=size,
        num_random_blocks=count,
        max_position_embeddings=whole,
        attention_probs_dropout_prob=0.0,
    )
    theirs = randomised(big_bird.BigBirdBlockSparseAttention(config, seed=0).double()).train(training)
    spec = f"bigbird(block_size={size}, num_random={count})"
    ours = AttentionLayer(DIM, spec, heads=HEADS, causal=False, max_length=whole, bias=True, seed=4).double()
    copied((getattr(ours, name), getattr(theirs, name)) for name in ("query", "key", "value"))
    assert isinstance(ours.attention, Bigbird)
    picks = ours.attention.picks[:, 1:-1]

    def run(x, keep):
        hidden, mask = F.pad(x, (0, 0, 0, whole - length)), F.pad(keep.double(), (0, whole - length))
        blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(mask, size)
        return theirs(hidden, band, rows, columns, blocked, blocked)[0][:, :length]

    return ours, theirs, picks, run


@pytest.mark.parametrize(("length", "size", "count"), [(48, 4, 2), (45, 4, 2), (61, 5, 3)])
@pytest.mark.parametrize("padded", [0, 7])
def test_bigbird_is_that_of_transformers_with_our_random_blocks(monkeypatch, length, size, count, padded):
    ours, theirs, picks, run = bigbird(length, size, count, training=True)
    assert (picks >= 0).all()
    drawn = [np.asarray(each, dtype=np.int32) for each in picks]
    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", lambda **_: drawn)
    x, keep = draw(2, length, DIM, seed=9), torch.ones(2, length, dtype=torch.bool)
    keep[1, length - padded :] = False
    close(heads_of(ours, x, key_mask=keep)[keep], run(x, keep)[keep])


def test_bigbird_of_transformers_counts_the_first_block_again_in_evaluation():
    """Its random blocks are all block 0 then, which every row sees already: three blocks more of the same weight."""
    ours, _, _, run = bigbird(48, 4, 3, training=False)
    assert isinstance(ours.attention, Bigbird)
    ours.attention.place(torch.full_like(ours.attention.picks, -1))
    x, keep = draw(2, 48, DIM, seed=9), torch.ones(2, 48, dtype=torch.bool)
    once, theirs = heads_of(ours, x, key_mask=keep), run(x, keep)
    close(once[:, :4], theirs[:, :4])  # a global row sees each key once
    assert (once - theirs).abs().max() > 0.01
