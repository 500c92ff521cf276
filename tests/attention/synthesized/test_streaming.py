"""Synthesizers in pieces: each token takes its row by its slot, and the state holds what the parts read."""

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(*parts: str) -> str:
    return f"mixture_synthesizer(parts={parts})"


@pytest.mark.parametrize(
    ("spec", "reads", "memory"),
    [
        ("dense_synthesizer", "qv", 1),
        ("factorized_dense_synthesizer", "qv", 2),
        ("random_synthesizer", "v", 2),
        ("factorized_random_synthesizer", "v", 1),
        (mixture("random", "dot_product"), "qkv", 2),
        (mixture("dot_product", "factorized_random"), "qkv", 1),
        (mixture("dense", "factorized_random"), "qv", 1),
        (mixture("factorized_dense", "factorized_random"), "qv", 2),
        (mixture("factorized_random", "random"), "v", 2),
    ],
)
def test_pieces_are_rows_of_the_whole(spec: str, reads: str, memory: int) -> None:
    heads = regard.Heads(count=4, key_dim=4, value_dim=3, kv_count=2, causal=True, max_length=40)
    mechanism = regard.build(spec, heads).double()
    assert (mechanism.info.reads, mechanism.info.memory) == (reads, memory)
    with torch.no_grad():  # no bias is 0, and no share equals another
        for at, weight in enumerate(mechanism.parameters()):
            weight.copy_(draw(*weight.shape, seed=20 + at))
    q, k, v = draw(2, 4, 30, 4), draw(2, 2, 30, 4, seed=1), draw(2, 2, 30, 3, seed=2)
    state, pieces = mechanism.initial_state(2, dtype=torch.float64), []
    with torch.no_grad():
        whole = mechanism(q, k, v).values
        for first, last in ((0, 11), (11, 12), (12, 13), (13, 30)):
            got = mechanism(*(x[:, :, first:last] for x in (q, k, v)), state=state)
            pieces.append(got.values)
            state = got.state
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=0, atol=1e-12)
    width = 3 + 4 * ("k" in reads)
    assert state.nbytes == mechanism.state_nbytes(2, 30, torch.float64) == 2 * 30 * 2 * width * 8
