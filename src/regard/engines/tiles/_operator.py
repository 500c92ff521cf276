"""The two passes as operators: one node of a graph at any length, whatever they do inside."""

import math

import torch
from torch import Tensor

from regard.engines.tiles._operands import Levels, Operands
from regard.engines.tiles._passes import backward, forward
from regard.engines.tiles.decay import gate_gradient, level_tiles
from regard.engines.tiles.plan import Places, Plan, find_plan
from regard.patterns.pattern import unwritten


@torch.library.custom_op("regard::tiles", mutates_args=())
def tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    curve: Tensor | None,
    query: Tensor | None,
    relative: Tensor | None,
    log_gates: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    query_start: int,
    key_start: int,
    rule: str,
    scale: float,
    high: int,
    whole: int,
) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and log-sum-exp (batch, heads, queries)."""
    queries, keys = Places(query_start, q.shape[2], query_positions), Places(key_start, k.shape[2], key_positions)
    plan = _plan(q, rule, queries, keys, whole, biased=curve is not None or relative is not None)
    levels = _levels(log_gates, queries, keys)
    return forward(plan, Operands(q, k, v, _hidden(key_mask, q), curve, query, relative, levels, high, scale))


def _plan(q: Tensor, rule: str, queries: Places, keys: Places, whole: int, *, biased: bool) -> Plan:
    return find_plan(rule, queries, keys, whole=whole, biased=biased, device=q.device, dtype=q.dtype)


def _levels(log_gates: Tensor | None, queries: Places, keys: Places) -> Levels | None:
    if log_gates is None:
        return None
    return level_tiles(log_gates, queries.start - keys.start, queries.length, keys.length)


def _hidden(key_mask: Tensor | None, q: Tensor) -> Tensor | None:
    if key_mask is None:
        return None
    none = torch.zeros(key_mask.shape, dtype=q.dtype, device=q.device)
    return none.masked_fill_(~key_mask, -math.inf)[:, None, :, None]


@tiles.register_fake
def _(q, k, v, *_):
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op("regard::tiles_backward", mutates_args=())
def _tiles_backward(
    grad_values: Tensor,
    grad_lse: Tensor,
    values: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    curve: Tensor | None,
    query: Tensor | None,
    relative: Tensor | None,
    log_gates: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    query_start: int,
    key_start: int,
    rule: str,
    scale: float,
    high: int,
    whole: int,
    curve_learns: bool,
    relative_learns: bool,
    gates_learn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, curve, query, relative, log_gates; empty where nothing learns."""
    queries, keys = Places(query_start, q.shape[2], query_positions), Places(key_start, k.shape[2], key_positions)
    plan = _plan(q, rule, queries, keys, whole, biased=curve is not None or relative is not None)
    levels = _levels(log_gates, queries, keys)
    operands = Operands(q, k, v, _hidden(key_mask, q), curve, query, relative, levels, high, scale)
    learning = curve_learns, relative_learns, gates_learn
    grads = backward(plan, operands, values, lse, grad_values, grad_lse, *learning)
    n, m = q.shape[2], k.shape[2]
    dquery = grads.query[:, :, :n].contiguous() if grads.query.ndim > 1 else grads.query
    dq, dk, dv = grads.q[:, :, :n], grads.k[:, :, :m], grads.v[:, :, :m]
    dgates = q.new_empty(0)
    if log_gates is not None and gates_learn:
        of_levels = grads.query_levels[:, :, :n], grads.key_levels[:, :, :m]
        dgates = gate_gradient(log_gates, query_start - key_start, *of_levels)
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), grads.curve, dquery, grads.relative, dgates


@_tiles_backward.register_fake
def _(grad_values, grad_lse, values, lse, q, k, v, key_mask, curve, query, relative, log_gates, *rest):
    curve_learns, relative_learns, gates_learn = rest[-3:]
    learns = curve_learns, relative_learns, relative_learns, gates_learn
    learning = zip((curve, query, relative, log_gates), learns, strict=True)
    biases = (q.new_empty(0) if x is None or not learns else x.new_empty(x.shape) for x, learns in learning)
    return *(x.new_empty(x.shape) for x in (q, k, v)), *biases


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*output, *inputs[:10])
    ctx.rest = inputs[10:]
    ctx.patterns = unwritten(inputs[12])  # what is made from a function must live until the backward


def _backward(ctx, grad_values, grad_lse):
    need = ctx.needs_input_grad
    learns = need[4], need[5] or need[6], need[7]
    grads = _tiles_backward(grad_values, grad_lse, *ctx.saved_tensors, *ctx.rest, *learns)
    dcurve = grads[3] if learns[0] else None
    dquery, drelative = grads[4:6] if learns[1] else (None, None)
    return *grads[:3], None, dcurve, dquery, drelative, grads[6] if learns[2] else None, *(None,) * 8


tiles.register_autograd(_backward, setup_context=_setup_context)
