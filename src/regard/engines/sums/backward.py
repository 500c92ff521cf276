"""The backward passes of the kernel operator, from the states that its forward pass kept, one per span."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.sums.passes import (
    LOWEST,
    SPAN,
    Features,
    Operands,
    Results,
    Scales,
    Span,
    carried,
    divisor,
    grouped,
    pieces,
    scales,
)
from regard.features.maps import FeatureMap


class Gradients(NamedTuple):
    """Gradients of the inputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_weight: Tensor
    """empty where there is none"""
    sum: Tensor


def backward_causal(
    x: Operands, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, of_state: Tensor
) -> None:
    """`out` and `into` are views of this part's rows; `of_state` is consumed."""
    rows = of_state.shape[0]
    states, slopes = (of_state.new_empty(SPAN + 1, *of_state.shape) for _ in range(2))
    for index, span in reversed(list(enumerate(x.spans()))):
        keys, v = x.keys(span), x.columns(span)
        fk, log = keys.turned, x.log_weights(keys, span)
        s = None if log is None else scales(log, out.kept_top[index], x.dtype)
        scaled = v if s is None else v * s.key
        slopes[span.chunks] = of_state
        if span.first < x.past:
            for i in reversed(range(span.chunks)):
                carried(slopes[i + 1], s, i, slopes[i])
            of_fk, of_v = _of_keys(fk, scaled, s, slopes[1 : span.chunks + 1])
        else:
            queries = x.queries(span - x.past, span)
            fq, g = queries.turned, _of_rows(x, out, of_values, of_total, span - x.past)
            of_y = g if s is None else (grouped(g, x.group) * s.row[:, None]).view_as(g)
            for i in reversed(range(span.chunks)):
                this = slice(i * rows, (i + 1) * rows)
                carried(slopes[i + 1], s, i, slopes[i]).baddbmm_(of_y[this].mT, fq[this])
            states[0] = out.kept_sum[index]
            for i in range(span.chunks - 1):
                this = slice(i * rows, (i + 1) * rows)
                carried(states[i], s, i, states[i + 1]).baddbmm_(scaled[this].mT, fk[this])
            pair, of_pair = torch.bmm(fq, fk.mT), torch.bmm(g, v.mT)
            for matrix in (grouped(pair, x.group), grouped(of_pair, x.group)):
                matrix.tril_() if s is None else matrix.mul_(s.pair[:, None])
            of_fk, of_v = _of_keys(fk, scaled, s, slopes[1 : span.chunks + 1])
            of_fk.baddbmm_(of_pair.mT, fq)
            of_v.baddbmm_(pair.mT, g)
            of_fq = torch.bmm(of_y, states[: span.chunks].flatten(0, 1)).baddbmm_(of_pair, fk)
            _pull(x, x.query_map, of_fq, queries, span, (span - x.past).of(into.q, 2))
        of_state.copy_(slopes[0])
        _store_keys(x, of_fk, of_v, keys, v, into, span)
    into.sum.copy_(of_state.mT)


def backward_full(
    x: Operands, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, of_state: Tensor
) -> None:
    """`out` and `into` are views of this part's rows; `of_state` is consumed."""
    for span in pieces(x.q.shape[2]):
        queries = x.queries(span, span)
        g = _of_rows(x, out, of_values, of_total, span)
        of_fq = torch.bmm(g, out.sum.mT)
        of_state.baddbmm_(g.mT, queries.turned)
        _pull(x, x.query_map, of_fq, queries, span, span.of(into.q, 2))
    for span in pieces(x.k.shape[1]):
        keys, v = x.keys(span), x.columns(span)
        log, scaled = x.log_weights(keys, span), v
        of_v = torch.bmm(keys.turned, of_state.mT)
        if log is not None:
            key = (log[0] - out.top[:, None].clamp_min(LOWEST)).to(x.dtype).exp()[..., None]
            of_v.mul_(key)
            scaled = v * key
        _store_keys(x, torch.bmm(scaled, of_state), of_v, keys, v, into, span)
    if x.weighted:
        of_state.mul_((out.kept_top[0] - out.top.clamp_min(LOWEST)).to(x.dtype).exp()[:, None, None])
    into.sum.copy_(of_state.mT)


def _of_rows(x: Operands, out: Results, of_values: Tensor, of_total: Tensor | None, span: Span) -> Tensor:
    """The gradient of the unnormalised rows y = [numerator, total] of one part."""
    of_average = span.of(of_values, 2)
    g = torch.empty(*of_average.shape[:-1], of_average.shape[-1] + 1, dtype=x.dtype, device=of_average.device)
    of_numerator, last = g[..., :-1], g[..., -1]
    if x.normalise:
        torch.div(of_average.to(x.dtype), divisor(span.of(out.total, 2))[..., None], out=of_numerator)
        torch.sum(of_numerator * span.of(out.values, 2), -1, out=last).neg_()
    else:
        of_numerator.copy_(of_average)
        last.zero_()
    if of_total is not None:
        last += span.of(of_total, 2)
    return g.flatten(2, 3).flatten(0, 1)


def _of_keys(fk: Tensor, scaled: Tensor, s: Scales | None, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the features and columns of keys, from those of the states behind them."""
    slopes = slopes.flatten(0, 1)
    of_v = torch.bmm(fk, slopes.mT)
    return torch.bmm(scaled, slopes), of_v if s is None else of_v.mul_(s.key)


def _store_keys(
    x: Operands, of_fk: Tensor, of_v: Tensor, keys: Features, v: Tensor, into: Gradients, span: Span
) -> None:
    """Store the gradients of a span's values, 0 at padding, of its log weights and of its keys."""
    if into.log_weight.numel():
        place = span.of(into.log_weight)
        place.copy_((v * of_v).sum(-1).view(place.shape))
    place = span.of(into.v)
    of_v = of_v[..., :-1].unflatten(0, place.shape[:2])
    place.copy_(of_v if x.real is None else of_v * span.of(x.real)[..., None])
    _pull(x, x.key_map, of_fk, keys, span, span.of(into.k))


def _pull(x: Operands, map_: FeatureMap, gradient: Tensor, f: Features, at: Span, into: Tensor) -> None:
    """Store the gradient of a span of queries or keys; that of their features may be overwritten."""
    gradient = map_.pull(x.turn(gradient, at, -1), f.plain, f.x, x.projection_of(f.x))
    into.copy_((gradient if x.scale == 1 else gradient * x.scale).view(into.shape))
