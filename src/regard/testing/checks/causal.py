"""Laws 1 and 5: causal is lower-right and exact; not causal really looks ahead."""

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.testing.compare import assert_close, assert_identical, largest_error, require
from regard.testing.inputs import LENGTH, LONG, Inputs, Subject, call, changed, run
from regard.testing.registry import check
from regard.testing.sizes import LONGEST


@check(("not supports.causal", "refusals"), ("leaks", "leak"))
def causality(subject: Subject) -> None:
    """Changing any future token changes no earlier output, not even a bit."""
    mechanism, x = subject.case(True, torch.float32)
    whole = run(mechanism, x).values
    for at in range(1, LENGTH):
        for where, scale in ((slice(at, at + 1), 3.0), (slice(at, None), 100.0 if at % 2 else 1.0)):
            other = changed(x, where, mechanism.heads, subject.info, f"future {at} {scale}", scale)
            what = f"outputs before position {at}, after other content at {where.start}:{where.stop or LENGTH}"
            assert_identical(run(mechanism, other).values[:, :, :at], whole[:, :, :at], what=what)


@check(("not supports.causal", "refusals"), ("leaks", "leak"))
def causality_beyond_sizes(subject: Subject) -> None:
    """Causality holds at the tile borders of any engine, and beyond every window, block or stride of the options."""
    borders = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, LONG - 1)
    beyond = 2 * min(max(subject.size, LONG), LONGEST // 4) + 1
    for length, places in ((LONG, borders), (beyond, (beyond // 2, beyond - 1))):
        mechanism, x = subject.drawn(True, length, "beyond", batch=1, dtype=torch.float32)
        whole = run(mechanism, x).values
        for at in places:
            scale = 100.0 if at % 2 else 1.0
            other = changed(x, slice(at, None), mechanism.heads, subject.info, f"future {at}", scale)
            what = f"outputs before position {at} of {length}, after other content from there on"
            assert_identical(run(mechanism, other).values[:, :, :at], whole[:, :, :at], what=what)


@check(("not supports.causal", "refusals"), ("leaks", "leak"))
def causality_of_gradients(subject: Subject) -> None:
    """No gradient flows from an output to a later token."""
    mechanism, x = subject.case(True, torch.float32)
    x = x.leaves()
    values, leaves = call(mechanism, x).values, x.named()
    for at in range(LENGTH - 1):
        total = values[:, :, at].square().sum()
        grads = torch.autograd.grad(total, list(leaves.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(leaves, grads, strict=True):
            late = 0.0 if grad is None else grad[:, :, at + 1 :].abs().max().item()
            require(late == 0, f"d output[{at}] / d {name}[later] is {late:.2e}")


@check(("not supports.causal", "refusals"), ("leaks", "leak"))
def causality_of_length(subject: Subject) -> None:
    """How many tokens follow changes no output: nothing is derived from the length of the call."""
    mechanism = subject.build(True, dtype=torch.float64)
    x = subject.inputs(mechanism, dtype=torch.float64, margin=True)
    whole = run(mechanism, x).values
    for at in (1, 2, LENGTH // 2, LENGTH - 1):
        # A shorter call may add in another order, so not to the bit.
        short = run(mechanism, x.slots(0, at)).values
        assert_close(short, whole[:, :, :at], tolerance=1e-9, what=f"the first {at} of {LENGTH} positions, alone")


@check(("not leaks", "causality"))
def leak(subject: Subject) -> None:
    """A form that is declared to leak does: the content or the number of future tokens changes an earlier output."""
    mechanism = subject.build(True)
    for seed in range(10):
        x = subject.inputs(mechanism, seed=seed)
        whole = run(mechanism, x).values
        for at in range(2, LENGTH):
            other = changed(x, slice(at, None), mechanism.heads, subject.info, f"leak {at}")
            if not torch.equal(run(mechanism, other).values[:, :, :at], whole[:, :, :at]):
                return
            # A shorter call may round otherwise.
            if largest_error(run(mechanism, x.slots(0, at)).values, whole[:, :, :at]) > 1e-3:
                return
    require(False, "info.leaks, but no change of a future token reached an earlier output")


@check()
def power(subject: Subject) -> None:
    """Causal uses the past, not causal also the future; the first position sees itself."""
    for causal in subject.modes:
        missing = ""
        for mechanism, x in subject.growing(causal):
            missing = _blind(subject, mechanism, x)
            if not missing:
                break
        require(not missing, f"{causal=}: {missing}")


def _blind(subject: Subject, mechanism: Attention, x: Inputs) -> str:
    """What the positions of a sequence do not see; empty: nothing is missing."""
    whole, length = run(mechanism, x).values, x.q.shape[2]

    def moves(where: slice, seen: slice) -> Tensor:
        other = changed(x, where, mechanism.heads, subject.info, f"power {where}")
        return (run(mechanism, other).values - whole)[:, :, seen].abs().amax((0, 1, 3)) > 1e-4

    if not bool(moves(slice(0, 1), slice(0, 1)).all()):
        return "position 0 does not see itself"
    positions = range(1, length - 1, max(2, length // 6))
    reached = sum(int(moves(slice(0, at), slice(at, at + 1))) for at in positions)
    if reached < len(positions) // 3:
        return f"only {reached} of {len(positions)} positions use the past"
    if mechanism.heads.causal:
        return ""
    reached = sum(int(moves(slice(at + 1, None), slice(at, at + 1))) for at in positions)
    return "" if reached >= len(positions) // 3 else f"only {reached} of {len(positions)} positions look ahead"


@check(("not supports.prefix", "refusals"))
def prefix(subject: Subject) -> None:
    """Leading keys are the past: the last queries alone give the last rows of the whole."""
    for n, counts in ((LENGTH, (1, 4, LENGTH - 1)), (LONG, (1, 65, 100))):
        mechanism, x = subject.drawn(True, n, "prefix", batch=1)
        whole = run(mechanism, x).values
        for queries in counts:
            values = run(mechanism, x.queries(n - queries)).values
            assert_close(values, whole[:, :, n - queries :], tolerance=1e-10, what=f"the last {queries} of {n} queries")
