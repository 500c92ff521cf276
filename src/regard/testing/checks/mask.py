"""Law 3: True means keep, and what is hidden has no influence whatever it holds."""

import torch
from torch import Tensor

from regard.core.errors import UnsupportedError
from regard.testing.compare import assert_close, assert_identical, largest_error, refused, require
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    call,
    changed,
    definition,
    draw,
    here,
    mask_with_holes,
    run,
    under_mask,
)
from regard.testing.registry import check
from regard.testing.sizes import growing

_REFUSED = ("not supports.key_mask", "refusals")


@check(_REFUSED)
def key_mask(subject: Subject) -> None:
    """True means keep: all True changes nothing, hiding a key matters, and the result is the definition's."""
    for causal, mechanism, x in subject.cases():
        free = run(mechanism, x).values
        full = run(mechanism, x, key_mask=torch.ones(2, LENGTH, dtype=torch.bool, device=here())).values
        assert_close(full, free, tolerance=1e-12, what="a mask of True")
        for n, mechanism_n in (
            (LENGTH, mechanism),
            (LONG, subject.build(causal, dtype=torch.float64, max_length=LONG)),
        ):
            y = x if n == LENGTH else draw(mechanism_n.heads, subject.info, n, n, 2, "masked").to(torch.float64)
            keep = mask_with_holes(2, n)
            masked = run(mechanism_n, y, key_mask=keep).values
            expected = definition(mechanism_n, y, key_mask=keep)
            real = _real_queries(subject, keep)
            assert_close(masked[real], expected[real], tolerance=1e-10, what=f"{n} keys with holes, {causal=}")
            if n == LENGTH:
                require((masked - free).abs().max().item() > 1e-3, "hiding keys changed nothing")


def _real_queries(subject: Subject, keep: Tensor) -> Tensor:
    """Rows to compare: every query, but where q and k are one only those that are real themselves."""
    rows = keep if subject.info.shares_query_key else torch.ones_like(keep)
    return rows[:, None, :].expand(-1, 2, -1)


@check(_REFUSED)
def masked_content(subject: Subject) -> None:
    """Hidden keys have no influence: neither NaN, infinity nor 1e4 under the mask changes an output bit."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        x, keep = subject.inputs(mechanism), mask_with_holes(2, LENGTH)
        real = _real_queries(subject, keep)
        whole = run(mechanism, x, key_mask=keep).values
        for content in (float("nan"), float("inf"), 1e4, -1e4):
            out = run(mechanism, under_mask(x, keep, content, subject.info), key_mask=keep).values
            assert_identical(out[real], whole[real], what=f"{content} under the mask, {causal=}")


@check(_REFUSED)
def masked_gradients(subject: Subject) -> None:
    """Hidden keys get no gradient, and with NaN under the mask every gradient stays finite."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        x, keep = subject.inputs(mechanism), mask_with_holes(2, LENGTH)
        hidden = ~keep[:, None, :, None]
        of_keys = {n: y.masked_fill(hidden, float("nan")) for n, y in x.named().items() if n not in x.asking}
        leaves = x.replaced(**of_keys).leaves()
        values = call(mechanism, leaves, key_mask=keep).values
        real = _real_queries(subject, keep)
        total = values[real].square().sum()
        for name, leaf in [*leaves.named().items(), *mechanism.named_parameters()]:
            (grad,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
            if grad is None:
                continue
            require(bool(grad.isfinite().all()), f"the gradient of {name} is not finite")
            if name in of_keys:
                require(not grad[hidden.expand_as(grad)].any(), f"hidden positions of {name} get a gradient")


@check(_REFUSED)
def empty_rows(subject: Subject) -> None:
    """A query without any key returns exactly 0, with finite gradients."""
    for causal, mechanism, x in subject.cases(torch.float32):
        keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
        keep[1] = False
        leaves = x.leaves()
        values = call(mechanism, leaves, key_mask=keep).values
        require(not values[1].any(), f"a row without keys returned up to {values[1].abs().max().item():.2e}, not 0")
        assert_close(values[0].detach(), run(mechanism, x).values[0], tolerance=2e-6, what="the full row beside it")
        grads = torch.autograd.grad(
            values.square().sum(), [*leaves.named().values(), *mechanism.parameters()], allow_unused=True
        )
        require(all(g.isfinite().all() for g in grads if g is not None), "a gradient is not finite")
        if causal and not subject.info.anchored:
            keep[1, LENGTH // 2 :] = True
            early = run(mechanism, x, key_mask=keep).values[1, :, : LENGTH // 2]
            require(not early.any(), f"queries before any key returned up to {early.abs().max().item():.2e}, not 0")


@check(_REFUSED)
def right_padding(subject: Subject) -> None:
    """A sequence padded on the right gives what it gives alone."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        for real, pads in ((LENGTH, 1), (LENGTH, 6), (4, 9)):
            x = subject.inputs(mechanism, queries=real, dtype=torch.float64)
            padded, keep = _pad(subject, x, 0, pads)
            out = run(mechanism, padded, key_mask=keep).values[:, :, :real]
            what = f"{real} positions with {pads} behind them, {causal=}"
            assert_close(out, run(mechanism, x).values, tolerance=1e-10, what=what)


@check(_REFUSED, ("anchored", "left_padding_refusal"))
def left_padding(subject: Subject) -> None:
    """A sequence padded on the left gives what it gives alone: patterns are relative."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        for real, pads in ((LENGTH, 1), (LENGTH, 6), (4, 9)):
            x = subject.inputs(mechanism, queries=real, dtype=torch.float64)
            padded, keep = _pad(subject, x, pads, 0)
            out = run(mechanism, padded, key_mask=keep).values
            what = f"{real} positions with {pads} before them, {causal=}"
            assert_close(out[:, :, pads:], run(mechanism, x).values, tolerance=1e-10, what=what)


@check(_REFUSED, ("not anchored", "left_padding"))
def left_padding_refusal(subject: Subject) -> None:
    """A pattern tied to absolute slots refuses a mask whose first slots are hidden."""
    for causal, mechanism, x in subject.cases(torch.float32):
        keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
        keep[1, :3] = False
        states = [None, mechanism.initial_state(2, device=here())] if causal and subject.info.supports.state else [None]
        for state in states:
            what = "" if state is None else ", with a state of no slots"
            refused(
                f"info.anchored, but left padding{what}",
                UnsupportedError,
                run,
                mechanism,
                x,
                key_mask=keep,
                state=state,
            )


@check(_REFUSED, ("not anchored", "left_padding"))
def anchor(subject: Subject) -> None:
    """A pattern that is declared to depend on absolute slots does: the same tokens further back give something else."""
    for causal in subject.modes:
        for length in growing(LENGTH, subject.size):
            mechanism = subject.build(causal, dtype=torch.float64, max_length=2 * length)
            x = draw(mechanism.heads, subject.info, length, length, 2, "anchored").to(torch.float64)
            alone = definition(mechanism, x)
            for pads in (1, 3, length // 2):
                padded, keep = _pad(subject, x, pads, 0)
                if largest_error(definition(mechanism, padded, key_mask=keep)[:, :, pads:], alone) > 1e-6:
                    return
    require(False, "info.anchored, but the definition gives the same at other slots")


def _pad(subject: Subject, x: Inputs, before: int, behind: int) -> tuple[Inputs, Tensor]:
    """The sequence between positions with other content, and the mask that hides those."""
    real = x.k.shape[2]
    wide = x.map(lambda y: torch.nn.functional.pad(y, (0, 0, before, behind)))
    keep = torch.zeros(x.k.shape[0], before + real + behind, dtype=torch.bool, device=here())
    keep[:, before : before + real] = True
    heads = subject.heads(subject.modes[0])
    return changed(wide, ~keep[0], heads, subject.info, "padding", scale=2.0), keep
