"""Marks: labels of tokens that a mechanism declares a meaning for, such as global tokens."""

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    call,
    changed,
    define,
    definition,
    here,
    mask_with_holes,
    run,
)
from regard.testing.registry import check
from regard.testing.streams import stream

_REFUSED = ("not supports.marks", "refusals")
_NOT_CAUSAL = ("not supports.causal", "refusals")


def some_marks(keys: int) -> dict[str, Tensor]:
    """Marks of two rows that differ: above 0, below 0, and segments of four tokens, the first of which sums them up."""
    at, positive = torch.arange(keys, device=here()), torch.zeros(2, keys, dtype=torch.long, device=here())
    positive[0, 1::5], positive[1, 2::7] = 1, 1
    segment = (torch.stack([at, at + 2]) // 4 + 1) * torch.where(torch.stack([at, at + 2]) % 4 == 0, -1, 1)
    return {"positive": positive, "negative": -positive, "segments": segment}


@check(_REFUSED)
def marks(subject: Subject) -> None:
    """Marks of 0 change nothing, others act as in the definition, in every row as in that row alone."""
    for causal in subject.modes:
        for length in (LENGTH, LONG):
            mechanism, x = subject.drawn(causal, length, "marked")
            plain, moved = run(mechanism, x).values, 0.0
            none = torch.zeros(2, length, dtype=torch.long, device=here())
            assert_close(run(mechanism, x, marks=none).values, plain, tolerance=1e-12, what="marks of 0")
            short, every = length == LENGTH, some_marks(length)
            for name, labels in every.items() if short else [("segments", every["segments"])]:
                what = f"{name} marks, {length} positions, {causal=}"
                for keep in (None, mask_with_holes(2, length)) if short else (None,):
                    if keep is None or subject.info.supports.key_mask:
                        out = run(mechanism, x, key_mask=keep, marks=labels).values
                        expected = definition(mechanism, x, key_mask=keep, marks=labels)
                        assert_close(out, expected, tolerance=1e-10, what=f"{what}, masked={keep is not None}")
                out = run(mechanism, x, marks=labels).values
                moved = max(moved, (out - plain).abs().max().item())
                single = run(mechanism, x.rows(slice(1, 2)), marks=labels[1:]).values
                assert_close(single[0], out[1], tolerance=1e-10, what=f"row 1 alone, {what}")
            # A window may hold every position.
            moves = moved > 1e-3 or any(_moved_by_marks(*each) for each in subject.growing(causal, length))
            require(moves, f"marks changed nothing, from {length} positions on, {causal=}")


def _moved_by_marks(mechanism: Attention, x: Inputs) -> bool:
    labels = some_marks(x.q.shape[2])["positive"]
    return (run(mechanism, x, marks=labels).values - run(mechanism, x).values).abs().max().item() > 1e-3


@check(_REFUSED, _NOT_CAUSAL, ("not supports.state", "refusals"))
def marks_state(subject: Subject) -> None:
    """A state remembers which of its keys are marked."""
    for length, cuts in ((LENGTH, ((5, 8), (1,) * LENGTH, (4, 1, 1, 7))), (LONG, ((70, LONG - 70),))):
        mechanism, x = subject.drawn(True, length, "marked stream")
        for name, labels in some_marks(length).items():
            whole = run(mechanism, x, marks=labels).values
            for cut in cuts:
                out = stream(mechanism, x, cut, marks=labels)[0]
                assert_close(out, whole, tolerance=1e-10, what=f"{name} marks, pieces of {cut}")


@check(_REFUSED, _NOT_CAUSAL)
def marks_causality(subject: Subject) -> None:
    """Neither the content nor the mark of a future token changes an earlier output."""
    mechanism, x = subject.case(True, torch.float32)
    for name, labels in some_marks(LENGTH).items():
        whole = run(mechanism, x, marks=labels).values
        for at in range(1, LENGTH):
            what = f"outputs before position {at}, {name} marks"
            other = changed(x, slice(at, None), mechanism.heads, subject.info, f"marked future {at}", 10.0)
            out = run(mechanism, other, marks=labels).values
            assert_identical(out[:, :, :at], whole[:, :, :at], what=f"{what}, other content")
            late = labels.clone()
            late[:, at:] = labels.flip(1)[:, at:]
            out = run(mechanism, x, marks=late).values  # more global tokens may be added in another order
            assert_close(out[:, :, :at], whole[:, :, :at], tolerance=2e-6, what=f"{what}, other marks")


@check(_REFUSED)
def marks_gradients(subject: Subject) -> None:
    """Gradients through marked tokens are those of the definition."""
    for causal, mechanism, x in subject.cases():
        for name, labels in some_marks(LENGTH).items():
            grads = []
            for defined in (False, True):
                y = x.clone().leaves()
                values = define(mechanism, y, marks=labels) if defined else call(mechanism, y, marks=labels).values
                total, leaves = (values * x.k[:, :1, :, :1]).sum(), list(y.named().values())
                grads.append(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
            for each, one, other in zip(x.named(), *grads, strict=True):
                if other.any():
                    assert_close(one, other, tolerance=1e-9, what=f"gradient of {each}, {name} marks, {causal=}")
