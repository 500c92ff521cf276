"""The choice of a token and the sums in a fixed order."""

import pytest
import torch

from regard.engines.routed import accumulate, nearest_points
from regard.engines.routed.lists import Listed, best_keys, listed


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("width", "size"), [(6, 0.0), (1024, 1e6)])
def test_nearest_is_the_largest_product_and_offset(width: int, size: float) -> None:
    """Also where products are no larger than the rounding of offsets, to which a product of many numbers adds twice."""
    x, points = (1e-2 * randn(2, 50, width)).float(), randn(2, 3, 7, width, seed=1).float()
    offsets = (size + 1e-2 * randn(2, 3, 7, seed=2)).float()
    scores = torch.einsum("hnd,hscd->hnsc", x.double(), points.double()) + offsets.double()[:, None]
    assert torch.equal(nearest_points(x, points, offsets).long(), scores.argmax(-1))


def test_a_tie_goes_to_the_lower_index_and_nan_chooses_the_first() -> None:
    x, point = randn(1, 4, 5), randn(1, 1, 1, 5, seed=1)
    x[0, 2], x[0, 3] = 0, float("nan")
    points = torch.cat([-9 * point, point, point, point], 2)
    offsets = torch.tensor([-1e3, 0.0, 0.0, 0.0])[None, None]
    assert nearest_points(x, points, offsets).flatten().tolist() == [1, 1, 1, 0]
    assert not nearest_points(0 * x[:, :3], points, 0 * offsets).any()  # zeros


@pytest.mark.parametrize(("choices", "width"), [(2, 48), (12, 2), (12, 48)])
def test_a_close_choice_ignores_the_rows_beside_it(choices: int, width: int) -> None:
    """Rows as near to one point as to all others, within rounding: a product of one row rounds otherwise than many."""
    points = randn(1, 1, 1, width, seed=1).float() + 3e-8 * randn(1, 1, choices, width, seed=2).float()
    x, offsets = randn(1, 400, width).float(), torch.zeros(1, 1, choices)
    whole = nearest_points(x, points, offsets)
    assert len(whole.unique()) > 1
    assert torch.equal(torch.cat([nearest_points(row, points, offsets) for row in x.split(1, 1)], 1), whole)


def test_accumulate_adds_repeated_rows() -> None:
    into, x = torch.zeros(3, 2, dtype=torch.float64), randn(5, 2)
    accumulate(into, torch.tensor([2, 0, 2, 2, 0]), x)
    expected = torch.stack([x[1] + x[4], torch.zeros(2, dtype=torch.float64), x[0] + x[2] + x[3]])
    torch.testing.assert_close(into, expected, rtol=0, atol=1e-14)


def test_best_keys_of_equal_ones_are_the_earliest() -> None:
    q, k = torch.ones(1, 1, 4, 1), torch.tensor([1.0, 3.0, 3.0, 3.0])[None, None, :, None]
    assert best_keys(q, k, None, 2, False)[0, 0].tolist() == [[1, 2]] * 4
    assert best_keys(q, k, None, 2, True)[0, 0].tolist() == [[0, -1], [1, 0], [1, 2], [1, 2]]
    mask = torch.tensor([[False, False, True, True]])
    assert best_keys(q, k, mask, 3, True)[0, 0].tolist() == [[-1] * 3, [-1] * 3, [2, -1, -1], [2, 3, -1]]


def test_listed_is_the_softmax_over_lists() -> None:
    """Grouped heads, slots in any order, and an empty list, which gives 0; gradients included."""
    q, k, v = (x.requires_grad_() for x in (randn(2, 4, 5, 3), randn(2, 2, 9, 3, seed=1), randn(2, 2, 9, 2, seed=2)))
    lists = torch.rand(2, 4, 5, 9, generator=torch.Generator().manual_seed(3)).argsort(-1)[..., :4]
    lists[:, :, 1, 2:], lists[:, :, 3] = -1, -1
    met = (lists[..., None] == torch.arange(9)).any(-2)
    logits = 0.7 * q @ k.repeat_interleave(2, 1).mT
    some = met.any(-1, keepdim=True)
    weights = logits.masked_fill(~met, float("-inf")).masked_fill(~some, 0).softmax(-1) * some
    expected, values = weights @ v.repeat_interleave(2, 1), listed(Listed(q, k, v, lists, 0.7))
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)
    way = randn(*values.shape, seed=4)
    ours, right = (torch.autograd.grad((x * way).sum(), (q, k, v)) for x in (values, expected))
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
