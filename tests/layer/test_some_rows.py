"""Rows of a batch that are asked for, against the whole batch: schemes, projections, mechanisms that can and cannot."""

from typing import Any

import pytest
import torch

from regard import AttentionLayer, Heads, ShapeError, UnsupportedError, build
from regard.layer import of_rows
from regard.testing.compare import assert_close
from regard.testing.inputs import mask_with_holes, randn

LENGTH, ROWS = 9, [1, 2, 4]
AT = torch.arange(LENGTH) + torch.tensor([[0], [3], [5], [1], [8]])


def layer(spec: str, **options: object) -> AttentionLayer:
    return AttentionLayer(16, spec, **{"heads": 4, "causal": True, "max_length": 64, **options}).double().eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("softmax", {}),
        ("softmax", {"kv_heads": 2, "position": "rotary"}),
        ("softmax", {"position": "rotary(fraction=0.5)", "bias": True}),
        ("softmax", {"position": "transformer_xl"}),
        ("softmax", {"position": "alibi"}),
        ("softmax", {"position": "learned"}),
        ("softmax", {"projections": "gated"}),
        ("softmax", {"projections": "none"}),
        ("cosine", {"position": "shaw_keys"}),
        ("additive", {}),
        ("additive", {"kv_heads": 2}),
        ("quantized", {}),
        ("linear", {"position": "rotary"}),
        ("local(window=3)", {}),
        ("softmax:2 + linear:2", {}),
        ("forgetting", {}),
        ("longformer(window=2)", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3])
def test_some_rows_are_those_of_all(spec, options, count):
    """With a mask, with positions of each row where the scheme takes them, behind a past; the state is that of all."""
    attention, x, keep = layer(spec, **options), randn(5, LENGTH, 16, seed="x").double(), mask_with_holes(5, LENGTH)
    past, start = LENGTH - count, attention.initial_state(5, dtype=x.dtype)
    placed = options.get("position", "").partition("(")[0] in ("rotary", "learned")
    for masked, at in ((False, False), (True, False), (False, placed)):
        mask, positions = keep if masked else None, AT if at else None
        first, rest = (
            {
                "key_mask": None if mask is None else mask[:, part],
                "positions": None if positions is None else positions[:, part],
            }
            for part in (slice(0, past), slice(past, None))
        )
        state = attention(x[:, :past], **first, state=start).state
        whole = attention(x[:, past:], **rest, state=state)
        some = of_rows(attention, x[:, past:], ROWS, **rest, state=state)
        assert whole.state is not None
        assert some.state is not None
        assert_close(some.hidden, whole.hidden[ROWS], tolerance=1e-12, what=f"hidden states, mask {masked}, {at}")
        for name, tensor in whole.state.tensors().items():
            assert_close(some.state.tensors()[name], tensor, tolerance=1e-12, what=name)
    plain = of_rows(attention, x, ROWS)
    assert_close(plain.hidden, attention(x).hidden[ROWS], tolerance=1e-12, what="without a state")


def test_averages_are_those_of_the_rows_alone():
    attention, seen = layer("softmax"), []
    attention.attention.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    state = attention.initial_state(5)
    with torch.no_grad():
        of_rows(attention, randn(5, 1, 16, seed="x").double(), ROWS, state=state)
    assert seen == [3]


def test_rows_are_refused_where_all_are_averaged():
    q, k, v = (randn(count, 2, 1, 4, seed=name) for name, count in (("q", 1), ("k", 3), ("v", 3)))
    linear, softmax = (build(spec, Heads(count=2, key_dim=4, causal=True)).eval() for spec in ("linear", "softmax"))
    reference = build("softmax", Heads(count=2, key_dim=4, causal=True), impl="reference").eval()
    for mechanism, name in ((linear, "linear"), (reference, "softmax")):
        with pytest.raises(UnsupportedError, match=f"{name} computes averages of all rows here"):
            mechanism(q, k, v, state=mechanism.initial_state(3), rows=[0])
    with pytest.raises(UnsupportedError, match="takes rows with a state and in eval"):
        softmax(q, k, v, rows=[0])


SOFTMAX = Heads(count=2, key_dim=4, causal=True)


@torch.no_grad()
def test_rows_that_the_batch_does_not_have_are_refused():
    softmax, x = build("softmax", SOFTMAX).eval(), randn(3, 2, 1, 4, seed="x")
    state = softmax.initial_state(3)
    wrong: tuple[Any, ...] = ([3], [-1], [0, 3], [2, 1], [1, 1], [True], [1.0], ["1"], "12", torch.tensor([1]), 1)
    for rows in wrong:
        with pytest.raises(ShapeError, match="rows must be numbers of the batch, ascending, from 0 to 2"):
            softmax(x[:1], x, x, state=state, rows=rows)


@torch.no_grad()
@pytest.mark.parametrize("rows", [[0, 2], range(1, 3)])
def test_rows_have_their_log_sum_exp(rows):
    softmax, x = build("softmax", SOFTMAX).eval(), randn(3, 2, 5, 4, seed="x")
    whole = softmax(x, x, x, state=softmax.initial_state(3), lse=True)
    some = softmax(x[list(rows)], x, x, state=softmax.initial_state(3), lse=True, rows=rows)
    assert whole.lse is not None
    assert some.lse is not None
    assert_close(some.lse, whole.lse[list(rows)], tolerance=1e-6, what="log-sum-exp")
    assert_close(some.values, whole.values[list(rows)], tolerance=1e-6, what="values")


@torch.no_grad()
def test_no_row_has_no_values():
    softmax, x = build("softmax", SOFTMAX).eval(), randn(3, 2, 5, 4, seed="x")
    some = softmax(x[:0], x, x, state=softmax.initial_state(3), rows=[], lse=True)
    assert some.values.shape == (0, 2, 5, 4)
    assert some.lse is not None
    assert some.lse.shape == (0, 2, 5)
    assert some.state is not None
    assert some.state.length == 5
