"""The engine of quantised keys: one call, and any pieces with a state."""

import torch

from regard.core.state import Slots, Tape
from regard.engines.routed.codes import coded, window


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def begin(block: int, num_codes: int) -> Slots:
    slots = window(block)
    blank = {"k": torch.zeros(1, 2, slots, 3).double(), "v": torch.zeros(1, 2, slots, 2).double()}
    blank["codes"] = torch.full((1, 2, slots), num_codes, dtype=torch.int32)
    cache = torch.zeros(1, 2, num_codes, 3, dtype=torch.float64)
    return Slots(Tape(blank, slots, slots), 0, slots, 0, {"cache": cache})


def test_pieces_are_the_softmax_over_codes() -> None:
    book, n = randn(2, 4, 3), 30
    codes = torch.randint(0, 4, (1, 2, n), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    q, v = randn(1, 4, n, 3, seed=2), randn(1, 2, n, 2, seed=3)
    k = book[torch.arange(2)[:, None], codes.long()]
    logits = (q @ k.repeat_interleave(2, 1).mT).masked_fill(~torch.ones(n, n).tril().bool(), float("-inf"))
    expected = logits.softmax(-1) @ v.repeat_interleave(2, 1)
    for block in (1, 4, 100):
        torch.testing.assert_close(coded(q, k, v, codes, book, block, None)[0], expected, rtol=0, atol=1e-12)
        state, out = begin(block, 4), []
        for at in torch.arange(n).split([3, 1, 9, 1, 16]):
            values, grown = coded(q[:, :, at], k[:, :, at], v[:, :, at], codes[:, :, at], book, block, state)
            assert grown is not None
            assert grown.kept == window(block)
            state = grown
            out.append(values)
        torch.testing.assert_close(torch.cat(out, 2), expected, rtol=0, atol=1e-12)


def test_a_block_of_zero_sees_every_key_through_its_code() -> None:
    book, codes = randn(2, 4, 3), torch.tensor([[[0, 3, 3, 1, 4], [2, 2, 2, 4, 4]]], dtype=torch.int32)
    q, v = randn(1, 2, 6, 3, seed=2), randn(1, 2, 5, 2, seed=3) * (codes < 4)[..., None]
    k = book[torch.arange(2)[:, None], codes.long().clamp(max=3)]
    logits = (q @ k.mT).masked_fill((codes == 4)[:, :, None], float("-inf"))
    torch.testing.assert_close(coded(q, k, v, codes, book, 0, None)[0], logits.softmax(-1) @ v, rtol=0, atol=1e-12)
