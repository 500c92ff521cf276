"""What checks give to a mechanism: declared inputs in their bounds, every tensor cut and changed by its own slots."""

import math
from dataclasses import replace

import pytest
import torch

from regard.core.info import Heads, Input
from regard.testing.inputs import (
    BOUND_MARGIN,
    LENGTH,
    Inputs,
    bounded,
    changed,
    draw,
    mask_with_holes,
    under_mask,
)
from tests.mutants.toys import ToyDecay

HEADS = Heads(count=4, key_dim=8, value_dim=6, kv_count=2, causal=True, seed=7)
INFO = ToyDecay.default_info


def drawn(queries=LENGTH, keys=LENGTH, info=INFO, scale=1.0):
    return draw(HEADS, info, queries, keys, 3, "here", scale)


def test_declared_inputs_have_the_slots_heads_and_widths_that_were_declared():
    x = drawn(queries=5)
    assert list(x.named()) == ["q", "k", "v", "log_decay", "strength", "gate"]
    assert {name: tuple(y.shape[1:]) for name, y in x.named().items()} == {
        "q": (4, 5, 8),
        "k": (2, LENGTH, 8),
        "v": (2, LENGTH, 6),
        "log_decay": (2, LENGTH, 1),
        "strength": (2, LENGTH, 8),
        "gate": (4, 5, 1),
    }


@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, math.inf), (-math.inf, 0.0), (2.0, math.inf), (0.0, 1.0), (-3.0, 5.0)]
)
def test_numbers_keep_clear_of_their_bounds(low, high):
    each = Input(slots="keys", heads=1, low=low, high=high, neutral=max(low, min(high, 0.0)))
    x = bounded(torch.randn(1, 1, 20_000, 1, generator=torch.Generator().manual_seed(0)), each, scale=3.0)
    if math.isinf(low) and math.isinf(high):
        assert (x < -2).any()
        assert (x > 2).any()
    span = high - low if math.isfinite(high - low) else 1.0
    if math.isfinite(low):
        assert low + 0.99 * BOUND_MARGIN * span <= x.min() < low + 0.1 * span
    if math.isfinite(high):
        assert high - 0.1 * span < x.max() <= high - 0.99 * BOUND_MARGIN * span
    if math.isfinite(low) and math.isfinite(high):
        assert abs(x.mean() - (low + high) / 2) < 0.02 * (high - low)


def test_cuts_are_by_the_slots_of_each_tensor():
    x = drawn(queries=9, keys=9)
    for name, y in x.queries(2, 5).named().items():
        assert torch.equal(y, x.named()[name][:, :, 2:5] if name in ("q", "gate") else x.named()[name])
    for name, y in x.keys(3).named().items():
        assert torch.equal(y, x.named()[name] if name in ("q", "gate") else x.named()[name][:, :, 3:])
    for name, y in x.slots(2, 5).named().items():
        assert torch.equal(y, x.named()[name][:, :, 2:5])
    again = Inputs.joined([x.slots(0, 4), x.slots(4, 9)], 2)
    beside = Inputs.joined([x.rows(slice(0, 1)), x.rows(slice(1, 3))], 0)
    for name, y in x.named().items():
        assert torch.equal(again.named()[name], y)
        assert torch.equal(beside.named()[name], y)
    with pytest.raises(AssertionError):
        x.queries(2).slots(0, 3)


def test_other_content_is_within_bounds_and_only_where_it_was_asked_for():
    x = drawn()
    for where in (slice(3, 6), torch.arange(LENGTH) % 2 == 0):
        chosen = torch.zeros(LENGTH, dtype=torch.bool)
        chosen[where] = True
        other = changed(x, where, HEADS, INFO, "other", scale=100.0)
        for name, y in other.named().items():
            differs = (y != x.named()[name]).any(-1)
            assert differs[:, :, chosen].all(), name
            assert not differs[:, :, ~chosen].any(), name
            if name in INFO.inputs:
                assert INFO.inputs[name].low <= y.min()
                assert y.max() <= INFO.inputs[name].high
    fewer = drawn(queries=4)
    other = changed(fewer, slice(2, 3), HEADS, INFO, "other")
    assert torch.equal(other.q, fewer.q)
    assert torch.equal(other.more["gate"], fewer.more["gate"])
    assert not torch.equal(other.more["strength"], fewer.more["strength"])


@pytest.mark.parametrize("content", [float("nan"), 1e4, -1e4])
def test_hidden_slots_of_keys_are_filled_as_far_as_bounds_allow(content):
    x, keep = drawn(), mask_with_holes(3, LENGTH)
    hidden = ~keep[:, None, :, None]
    filled = under_mask(x, keep, content, INFO).named()
    for name, y in x.named().items():
        where = hidden.expand_as(y)
        if name in x.asking:
            assert filled[name] is y
            continue
        assert torch.equal(filled[name][~where], y[~where])
        low, high = (INFO.inputs[name].low, INFO.inputs[name].high) if name in INFO.inputs else (-math.inf, math.inf)
        wanted = torch.full_like(y[where], content).clamp(low, high)
        assert torch.equal(filled[name][where].nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_one_projection_serves_as_query_and_key():
    info = replace(INFO, shares_query_key=True)
    x = drawn(queries=4, info=info)
    assert torch.equal(x.q, x.k[:, :, -4:].repeat_interleave(2, 1))
    hidden = under_mask(x, mask_with_holes(3, LENGTH), 5.0, info)
    assert torch.equal(hidden.q, hidden.k[:, :, -4:].repeat_interleave(2, 1))
