"""Codes and steps: golden values, zeros, and gradients that pass."""

import torch

from regard.core.state import Slots
from regard.engines.dense import append_codes, block_codes, codes, in_blocks, rounded, rounded_blocks, rounded_rows


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_golden_codes() -> None:
    whole, unit = codes(torch.tensor([[12.7, -0.14, 0.06], [0.0, 0.0, 0.0]], dtype=torch.float64))
    assert whole.tolist() == [[127, -1, 1], [0, 0, 0]]
    torch.testing.assert_close(unit, torch.tensor([0.1, 0.0], dtype=torch.float64))


def test_golden_steps() -> None:
    row = torch.tensor([[0.6, 0.25, 0.15], [0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(rounded_rows(row, 3, renormalise=False), expected)
    expected = torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(rounded_rows(row, 3, renormalise=True), expected)
    torch.testing.assert_close(rounded_rows(row, 1, renormalise=True)[0], torch.tensor([1.0, 0.0, 0.0]).double())


def test_gradients_are_those_of_the_numbers() -> None:
    x, way = draw(3, 5).requires_grad_(), draw(3, 5, seed=1)
    for on_grid in (rounded(x), rounded_rows(x, 3, renormalise=True)):
        assert (on_grid - x).abs().max() > 1e-3
        assert torch.equal(torch.autograd.grad((on_grid * way).sum(), x)[0], way)


def test_a_state_of_codes_becomes_one_of_numbers_where_gradients_are_recorded() -> None:
    like = torch.empty(1, 2, 0, 4, dtype=torch.int8)
    unit = torch.empty(1, 2, 0, dtype=torch.float64)
    state = Slots.empty(k=like, v=like.clone(), k_unit=unit, v_unit=unit.clone())
    k, v = draw(1, 2, 3, 4), draw(1, 2, 3, 4, seed=1)
    kept = append_codes(state, k, v, None).view()
    assert kept["k"].dtype == torch.int8
    torch.testing.assert_close(kept["v"] * kept["v_unit"][..., None], rounded(v), rtol=0, atol=1e-15)
    leaf = k.clone().requires_grad_()
    kept = append_codes(state, leaf, v, None).view()
    assert kept["k"].dtype == torch.float64
    torch.testing.assert_close(kept["k"] * kept["k_unit"][..., None], rounded(k), rtol=0, atol=1e-15)
    assert torch.equal(torch.autograd.grad(kept["k"].sum(), leaf)[0], torch.ones_like(k))


def test_golden_codes_of_blocks() -> None:
    """Blocks of two slots: a channel's unit is its largest number in the block / 127; a channel of zeros stays."""
    x = torch.tensor([[12.7, 0.5, 0.0], [-0.14, -0.25, 0.0], [0.06, 1.27, 3.0], [0.03, 0.0, -1.5]]).double()
    whole, unit = block_codes(x[None, None], 2)
    assert whole[0, 0].tolist() == [[[127, 127, 0], [-1, -64, 0]], [[127, 127, 127], [64, 0, -64]]]
    expected = torch.tensor([[0.1, 0.5 / 127, 0.0], [0.06 / 127, 0.01, 3 / 127]]).double()
    torch.testing.assert_close(unit[0, 0], expected, rtol=1e-6, atol=0)


def test_blocks_lose_half_a_unit_at_most_and_once() -> None:
    x, way = draw(2, 3, 40, 5).requires_grad_(), draw(2, 3, 40, 5, seed=1)
    once = rounded_blocks(x, 8)
    half = x.detach().unflatten(2, (5, 8)).abs().amax(3, keepdim=True) / 254
    lost = (once - x).detach().unflatten(2, (5, 8)).abs() / half
    assert 0.99 < lost.max() <= 1 + 1e-12
    torch.testing.assert_close(rounded_blocks(once, 8), once, rtol=0, atol=1e-15)
    assert torch.equal(torch.autograd.grad((once * way).sum(), x)[0], way)


def test_what_is_known_of_blocks() -> None:
    """Of 11 slots in blocks of 4, those of `complete` blocks are rounded, the others as they were given."""
    k, v = draw(1, 2, 11, 3), draw(1, 2, 11, 4, seed=1)
    blocks = in_blocks(k, v, None, None, 4)
    for complete in (0, 4, 8):
        for known, given in zip(blocks.known(complete), (k, v), strict=True):
            assert torch.equal(known[:, :, complete:], given[:, :, complete:])
            torch.testing.assert_close(
                known[:, :, :complete], rounded_blocks(given[:, :, :complete], 4), rtol=0, atol=1e-15
            )
