"""BigBird's self-attention in transformers counts its first block again in evaluation, on random weights."""

import pytest
import torch

from regard import AttentionLayer
from regard.attention.sparse.bigbird import Bigbird

pytestmark = pytest.mark.external
WHY = "transformers is not installed; `make external`"
transformers = pytest.importorskip("transformers", reason=WHY)
big_bird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird", reason=WHY)

DIM, HEADS = 24, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(module):
    with torch.no_grad():
        for at, weight in enumerate(module.parameters()):
            weight.copy_(0.4 * draw(*weight.shape, seed=at))
    return module


def heads_of(layer, *given, **more):
    """The averages of every head: the output projection is the identity."""
    with torch.no_grad():
        layer.projections.output.weight.copy_(torch.eye(DIM))
        layer.projections.output.bias.zero_()
    return layer(*given, **more).hidden


def close(a, b, tolerance=1e-9):
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max()


def test_bigbird_of_transformers_counts_the_first_block_again_in_evaluation():
    """Its random blocks are all block 0 then, which every row sees already: three blocks more of the same weight."""
    config = transformers.BigBirdConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        block_size=4,
        num_random_blocks=3,
        max_position_embeddings=48,
        attention_probs_dropout_prob=0.0,
    )
    theirs = randomised(big_bird.BigBirdBlockSparseAttention(config, seed=0).double()).eval()
    spec = "bigbird(block_size=4, num_random=3)"
    ours = AttentionLayer(DIM, spec, heads=HEADS, causal=False, max_length=48, bias=True, seed=4).double()
    with torch.no_grad():
        for name in ("query", "key", "value"):
            own, other = getattr(ours.projections, name), getattr(theirs, name)
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)
    assert isinstance(ours.attention, Bigbird)
    ours.attention.place(torch.full_like(ours.attention.picks, -1))
    x, keep = draw(2, 48, DIM, seed=9), torch.ones(2, 48, dtype=torch.bool)
    blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(keep.double(), 4)
    once, found = heads_of(ours, x, key_mask=keep), theirs(x, band, rows, columns, blocked, blocked)[0]
    close(once[:, :4], found[:, :4])  # a global row sees each key once
    assert (once - found).abs().max() > 0.01
