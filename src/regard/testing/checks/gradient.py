"""Gradients, losses and dropout: what training needs."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.core.attention import Attention
from regard.testing.compare import assert_close, assert_gradients, assert_identical, require
from regard.testing.conditioning import assert_float32
from regard.testing.inputs import (
    LENGTH,
    LONG,
    Inputs,
    Subject,
    activated,
    as_queries,
    call,
    define,
    here,
    mask_with_holes,
    projected,
    randn,
    run,
    under_mask,
)
from regard.testing.registry import check

GRADIENT_ERROR_FLOAT32 = 1e-5
"""of the largest gradient of a tensor; more only where the definition itself loses it, see `conditioning`"""

DROPOUT_DRAWS = 500
"""calls of one input over which dropout is averaged"""
ROUNDING = 1e-5
"""of the largest value, below which nothing is told of one that its neighbours say exactly"""
DROPOUT_HEADS_ROWS = 20
"""rows over which the drops of two heads are compared"""


def _leaves(mechanism: Attention, x: Inputs) -> dict[str, Tensor]:
    """Everything with a gradient: inputs that are read, and parameters (which the mechanism holds itself)."""
    read = mechanism.info.reads.replace("q", "k") if mechanism.info.shares_query_key else mechanism.info.reads
    inputs = {name: y.requires_grad_() for name, y in x.named().items() if name in read or name in x.more}
    return {**inputs, **dict(mechanism.named_parameters())}


def _with(mechanism: Attention, leaves: dict[str, Tensor], x: Inputs) -> Inputs:
    """The inputs with those among `leaves` in place; q follows k where one projection serves as both."""
    inputs = {name: leaves[name] for name in x.named() if name in leaves}
    if mechanism.info.shares_query_key:
        inputs["q"] = as_queries(inputs.get("k", x.k), mechanism.heads, x.q.shape[2])
    return x.replaced(**inputs)


@check()
def reference_gradients(subject: Subject) -> None:
    """In float64 every gradient is that of the definition, with and without a mask, within and across tiles."""
    for causal in subject.modes:
        for length in (LENGTH, LONG):
            mechanism = subject.build(causal, dtype=torch.float64, max_length=LONG)
            x = subject.inputs(mechanism, queries=length, batch=1, dtype=torch.float64)
            leaves = _leaves(mechanism, x)
            way = randn(1, 2, length, 6, seed="way", dtype=torch.float64)
            masks = (None, mask_with_holes(1, length)) if subject.info.supports.key_mask else (None,)
            for keep in masks:
                if keep is not None and subject.info.shares_query_key:
                    way = way * keep[:, None, :, None]
                inputs = _with(mechanism, leaves, x)
                got = _gradients((call(mechanism, inputs, key_mask=keep).values * way).sum(), leaves)
                wanted = _gradients((define(mechanism, inputs, key_mask=keep) * way).sum(), leaves)
                what = f"{length} positions, {causal=}{'' if keep is None else ', masked'}"
                assert_gradients(got, wanted, tolerance=1e-9, what=what)


def _gradients(total: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def _gradients_of_sum(mechanism: Attention, x: Inputs, definition: bool, decisions: object = None) -> dict[str, Tensor]:
    """Gradients of a randomly weighted sum of the values on `projected` inputs, in their dtype."""
    x = x.map(Tensor.detach)
    leaves = _leaves(mechanism, x)
    inputs = activated(mechanism, _with(mechanism, leaves, x))
    values = define(mechanism, inputs, decisions=decisions) if definition else call(mechanism, inputs).values
    way = randn(*values.shape, seed="way").to(values.dtype)
    return {f"gradient of {name}": grad for name, grad in _gradients((values * way).sum(), leaves).items()}


@check()
def float32_gradients(subject: Subject) -> None:
    """In float32 gradients err by at most 1e-5 of the largest, or 4 times what the definition's lose in any order."""
    for causal in subject.modes:
        mechanism = subject.build(causal, max_length=LONG)
        x = projected(mechanism, subject.inputs(mechanism, queries=LONG, batch=1))
        made = mechanism.decisions(x.q, x.k) if subject.info.replays_choices else None  # pyright: ignore[reportCallIssue]
        got = _gradients_of_sum(mechanism, x, definition=False)
        by_definition = partial(_gradients_of_sum, definition=True, decisions=made)
        assert_float32(
            got, by_definition, mechanism, x, floor=GRADIENT_ERROR_FLOAT32, what=f"{LONG} positions, {causal=}"
        )


@check()
def finite_differences(subject: Subject) -> None:
    """In float64 gradients of q, v, inputs and parameters are the slopes, those of straight-through ones are not."""
    _slopes(subject, keys=False)


@check(("straight_through", "reference_gradients"))
def finite_differences_of_keys(subject: Subject) -> None:
    """In float64 the gradient of the keys is the slope of the values."""
    _slopes(subject, keys=True)


def _slopes(subject: Subject, *, keys: bool) -> None:
    step = 1e-5
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        x = projected(mechanism, subject.inputs(mechanism, dtype=torch.float64, margin=True))
        leaves = _leaves(mechanism, x)
        way = randn(2, 2, LENGTH, 6, seed="way", dtype=torch.float64)
        grads = _gradients(_along(mechanism, leaves, x, way), leaves)
        for name, leaf in leaves.items():
            if (name == "k") is not keys:
                continue
            for trial in range(2):
                along = randn(*leaf.shape, seed=f"along {name} {trial}", dtype=torch.float64)
                ends = []
                with torch.no_grad():
                    still = leaf.detach().clone()
                    for side in (1, -1, 2, -2):
                        leaf.copy_(still + side * step * along)
                        ends.append(_along(mechanism, leaves, x, way))
                    leaf.copy_(still)
                # five points: the error falls with step^4, so that strong curvature does not look like a wrong gradient
                slope = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
                claimed = (grads[name] * along).sum()
                scale = max(slope.abs().item(), (grads[name].norm() * along.norm()).item() / 30, 1e-3)
                off = (slope - claimed).abs().item() / scale
                straight = name in subject.info.straight_through
                require(
                    not straight or off > 1e-6, f"info.straight_through names {name}, but its gradient is the slope"
                )
                require(
                    straight or off < 1e-6,
                    f"slope along a random change of {name} is {slope.item():.9g}, its gradient says "
                    f"{claimed.item():.9g}, {causal=}",
                )


def _along(mechanism: Attention, leaves: dict[str, Tensor], x: Inputs, way: Tensor) -> Tensor:
    """The values of a call with projected inputs, along one direction."""
    return (call(mechanism, activated(mechanism, _with(mechanism, leaves, x))).values * way).sum()


@check()
def parameter_gradients(subject: Subject) -> None:
    """Every parameter and every tensor that is read gets a finite gradient, 0 only in `info.without_gradient`."""
    for causal in subject.modes:
        mechanism = subject.build(causal).train()
        x = projected(mechanism, subject.inputs(mechanism))
        leaves = _leaves(mechanism, x)
        out = call(mechanism, activated(mechanism, _with(mechanism, leaves, x)))
        total = out.values.square().sum() + sum(out.losses.values())
        for name, leaf in leaves.items():
            (grad,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
            if name in subject.info.without_gradient:
                require(
                    grad is None or not grad.any(),
                    f"info.without_gradient names {name}, and a gradient reaches it, {causal=}",
                )
                continue
            require(grad is not None, f"{name} gets no gradient, {causal=}")
            require(bool(grad.isfinite().all()), f"the gradient of {name} is not finite, {causal=}")
            require(bool(grad.any()), f"the gradient of {name} is 0, {causal=}")


@check()
def losses(subject: Subject) -> None:
    """Training returns exactly the losses of `info`, finite, differentiable, blind to hidden keys; evaluation none."""
    info = subject.info
    for causal, mechanism, x in subject.cases(torch.float32):
        returned = run(mechanism, x).losses
        require(returned == {}, f"losses in evaluation: {sorted(returned)}")
        mechanism.train()
        returned = call(mechanism, x.leaves()).losses
        require(
            set(returned) == set(info.losses), f"info declares {sorted(info.losses)}, training gave {sorted(returned)}"
        )
        for name, loss in returned.items():
            require(loss.ndim == 0 and bool(loss.isfinite()), f"{name} must be one finite number")
            require(loss.requires_grad, f"{name} has no gradient")
        if returned and info.supports.key_mask:
            x = x.map(Tensor.detach)
            padded = x.map(lambda y: torch.nn.functional.pad(y, (0, 0, 0, 5)))
            keep = torch.arange(LENGTH + 5, device=here()).expand(2, -1) < LENGTH
            longer = call(subject.build(causal).train(), padded, key_mask=keep).losses
            for name, loss in longer.items():
                assert_close(loss.detach(), returned[name].detach(), tolerance=1e-5, what=f"{name} with 5 hidden keys")
            keep = mask_with_holes(2, LENGTH)
            for content in (1e4, float("nan")):
                hidden = under_mask(x, keep, content, info)
                other = call(subject.build(causal).train(), hidden, key_mask=keep).losses
                clean = call(subject.build(causal).train(), x, key_mask=keep).losses
                for name, loss in other.items():
                    assert_close(loss.detach(), clean[name].detach(), tolerance=1e-6, what=f"{name}, {content} hidden")


@check()
def recomputation(subject: Subject) -> None:
    """A block that is computed again in its backward pass updates no buffer again; its gradients are the same."""
    for causal in subject.modes:
        results = []
        for again in (False, True):
            mechanism = subject.build(causal, dtype=torch.float64).train()
            x = subject.inputs(mechanism, dtype=torch.float64)
            x = x.leaves()
            out: Any = checkpoint(call, mechanism, x, use_reentrant=False) if again else call(mechanism, x)
            grads = torch.autograd.grad(out.values.square().sum(), list(x.named().values()), allow_unused=True)
            results.append((dict(mechanism.named_buffers()), grads))
        (once, grads), (twice, same) = results
        for name, buffer in once.items():
            if buffer.numel():
                assert_identical(twice[name], buffer, what=f"buffer {name} after a block that was computed twice")
        for name, one, other in zip(x.named(), grads, same, strict=True):
            if one is not None:
                assert_close(other, one, tolerance=1e-12, what=f"gradient of {name} with checkpointing")


@check(("not supports.dropout", "refusals"))
def dropout(subject: Subject) -> None:
    """Dropout acts in training only, by call, row and head, one mask for both passes; the mean is that without."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64, dropout=0.4)
        plain = subject.build(causal, dtype=torch.float64)
        x = subject.inputs(mechanism, queries=6, batch=1, dtype=torch.float64)
        expected = run(plain, x).values
        assert_close(run(mechanism, x).values, expected, tolerance=1e-12, what="dropout in evaluation")
        mechanism.train()
        repeated = x.map(lambda y: y.expand(DROPOUT_DRAWS, -1, -1, -1))
        torch.manual_seed(0)
        first, second = run(mechanism, repeated).values, run(mechanism, repeated).values
        require(not torch.equal(first, second), "two training calls drop the same weights")
        require(bool((first.std(0) > 0).any()), "every row of a batch drops the same weights")
        if subject.info.linear_in_value:
            _mean_is_unchanged(torch.cat([first, second]), expected[0])
        alike = x.map(lambda y: y[:, :1].expand(DROPOUT_HEADS_ROWS, y.shape[1], -1, -1))
        heads = run(plain, alike).values.unbind(1)
        if len(heads) > 1 and torch.equal(heads[0], heads[1]):
            dropped = run(mechanism, alike).values
            require(not torch.equal(dropped[:, 0], dropped[:, 1]), "every head drops the same weights")
        _slopes_of_one_mask(mechanism, x)


def _mean_is_unchanged(drawn: Tensor, expected: Tensor) -> None:
    """Every value by itself and beside the others of its row, and all together, whose common factor is known best.

    The values of a row share its dropped weights. So what the others were off by tells what one should be off by, and
    only the rest of its spread is in doubt: of off-values d with covariance C, (C^-1 d)_i / (C^-1)_ii is that rest and
    1 / (C^-1)_ii its variance.

    The factor of a draw is its product with what is expected, each value weighted by what it is known to. At 5 standard
    errors, 1,000 draws of the suite's inputs show a factor that is 2.4 to 3.2 % off; value by value 4,000 show 3.1 to
    4.0 %, and 1,000 show 6.1 to 8.1 %.
    """
    draws, off = len(drawn), drawn.mean(0) - expected
    error = drawn.std(0) / draws**0.5
    z = (off.abs() / error.clamp_min(1e-12)).max().item()
    require(z < 5, f"the mean over {draws} draws is {z:.1f} standard errors away")
    apart = drawn - drawn.mean(0)
    least = (ROUNDING * expected.abs().max()) ** 2 * torch.eye(expected.shape[-1], dtype=expected.dtype, device=here())
    known = torch.linalg.inv(torch.einsum("nhid,nhie->hide", apart, apart) / (draws - 1) + least)
    rest = (known @ off[..., None])[..., 0].abs() / known.diagonal(dim1=-2, dim2=-1).sqrt() * draws**0.5
    z = rest.max().item()
    require(z < 5, f"beside its row the mean of a value over {draws} draws is {z:.1f} standard errors away")
    variance = drawn.var(0)
    weights = torch.where(variance > 1e-20, expected / variance.clamp_min(1e-20), 0.0)
    if not bool((weights * expected).sum() > 0):
        return  # nothing is dropped, or nothing is there to drop
    factor = (drawn * weights).flatten(1).sum(1) / (weights * expected).sum()
    z = ((factor.mean() - 1).abs() / (factor.std() / draws**0.5).clamp_min(1e-12)).item()
    require(z < 5, f"{draws} draws are {factor.mean().item():.3f} times what is expected, {z:.1f} standard errors away")


def _slopes_of_one_mask(mechanism: Attention, x: Inputs) -> None:
    """Gradients in training, all together, are the slope of what the same draw gives."""
    info, step = mechanism.info, 1e-5
    exact = set(info.reads) - set(info.straight_through + info.without_gradient)
    if not exact:
        return
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in x.named().items() if name in exact}
    along = {name: randn(*leaf.shape, seed=f"along {name}", dtype=leaf.dtype) for name, leaf in leaves.items()}

    def total(distance: float) -> Tensor:
        moved = {name: leaf + distance * along[name] for name, leaf in leaves.items()}
        torch.manual_seed(0)
        values = call(mechanism, x.replaced(**moved)).values
        return (values * randn(*values.shape, seed="way", dtype=values.dtype)).sum()

    grads = _gradients(total(0.0), leaves)
    with torch.no_grad():
        slope = (total(step) - total(-step)) / (2 * step)
    got = torch.stack([(grads[name] * along[name]).sum() for name in leaves]).sum()
    assert_close(got, slope, tolerance=1e-6, what="the slope along all gradients with dropout")
