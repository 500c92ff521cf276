"""Attention by hashes agrees with the Reformer of transformers where each of its chunks holds one bucket.

The published code lets a query see its whole chunk, other buckets too, and the paper does not. With two buckets (a
direction and its opposite) and a sequence in which every vector has its negative, each round puts exactly half of the
tokens into each bucket, whatever its rotation; with chunks of that size both are the same computation, while the rounds
differ. It counts a key once per round in which it is met. Its keys of unit length are not divided by sqrt(d) again, so
ours get queries that are sqrt(d) times as long; the length of a key does not matter.
"""

from functools import partial

import pytest
import torch

import regard
from regard import Heads
from regard.testing import assert_close

pytest.importorskip("transformers", reason="transformers is not installed; `make external`")
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

pytestmark = pytest.mark.external

HEADS, DIM, LENGTH = 3, 8, 24


def pairs() -> torch.Tensor:
    """(batch, length, heads * dim): every vector and its negative, in random order, the same order in every head."""
    draw = torch.Generator().manual_seed(0)
    half = torch.randn(2, LENGTH // 2, HEADS * DIM, generator=draw, dtype=torch.float64)
    stretched = half * (0.5 + torch.rand(2, LENGTH // 2, 1, generator=draw, dtype=torch.float64))
    return torch.cat([half, -stretched], 1)[:, torch.randperm(LENGTH, generator=draw)]


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_lsh_is_reformers(causal, rounds):
    config = ReformerConfig(
        attention_head_size=DIM,
        num_attention_heads=HEADS,
        hidden_size=HEADS * DIM,
        num_buckets=2,
        num_hashes=rounds,
        lsh_attn_chunk_length=LENGTH // 2,
        lsh_num_chunks_before=0,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
        hash_seed=5,
    )
    theirs = LSHSelfAttention(config, layer_idx=0).double().eval()
    theirs._len_norm = partial(theirs._len_norm, epsilon=0.0)  # theirs is 1e-6 beside the mean square of a key
    with torch.no_grad():
        theirs.query_key.weight.copy_(torch.eye(HEADS * DIM))
    x = pairs()
    expected = theirs(x).hidden_states.unflatten(2, (HEADS, DIM)).transpose(1, 2)

    ours = regard.build(
        "lsh", Heads(count=HEADS, key_dim=DIM, causal=causal), num_buckets=2, rounds=rounds, duplicates=True
    ).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.hash_seed)
        rotations = torch.randn(HEADS, DIM, rounds, 1, dtype=torch.float64)
    ours.rotations = rotations.transpose(1, 2)
    q, v = (y.unflatten(2, (HEADS, DIM)).transpose(1, 2) for y in (x, theirs.value(x)))
    q = q * DIM**0.5
    buckets = ours.decisions(q, q).keys
    assert (buckets.sum(2) == LENGTH // 2).all(), "a chunk holds more than one bucket"
    assert rounds == 1 or (buckets[..., 0] != buckets[..., 1]).any(), "all rounds are the same"
    spec = f"lsh(num_buckets=2, rounds={rounds})"
    definition = regard.build(spec, ours.heads, duplicates=True, impl="reference").double()
    definition.rotations = ours.rotations
    for each in (ours, definition):  # they take 1e5 off a token's own logit, which costs 5 digits
        assert_close(each(q, q, v).values, expected, tolerance=1e-10, what=f"{rounds} rounds, {each.impl}")
    once = regard.build(spec, ours.heads).double()
    once.rotations = ours.rotations
    assert rounds == 1 or not torch.allclose(once(q, q, v).values, expected, atol=1e-3)
