"""The pairs of a mechanism and a position scheme that work together: every pair built as a layer, and tried."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import catalog
from regard.core.attention import Attention, Heads
from regard.core.errors import UnsupportedError
from regard.layer import AttentionLayer
from regard.testing.compare import assert_close, largest_error, require
from regard.testing.inputs import LENGTH, randn

DIM, HEADS = 16, 4
PIECES = [5, 1, 1, LENGTH - 7]
TOLERANCE = 1e-10
"""in float64, of the largest output: pieces differ from the whole by rounding only"""


@dataclass(frozen=True)
class Pair:
    """The outcome of a mechanism with a position scheme.

    Attributes:
        forms: all that were tried and hold: "training" (gradients reach every weight of the scheme, and it changes the
            output), "streaming" (pieces with a state equal the whole), "segments" (so do segments with a memory of
            hidden states). A form that the mechanism has with no scheme is not among them.
        reason: why the layer cannot be built; empty where it can.
    """

    mechanism: str
    position: str
    forms: tuple[str, ...] = ()
    reason: str = ""


def position_pair(mechanism: str, scheme: str) -> Pair:
    """Build the pair, causal and not, and try every form that the mechanism has.

    Args:
        mechanism: a name of the catalog, taken with its first sample of options, or a specification.
        scheme: a name or specification of a position scheme.

    Raises:
        AssertionError: the layer builds, and does not do what it should.

    Example:
        >>> position_pair("softmax", "alibi").forms
        ('training', 'streaming', 'segments')
        >>> position_pair("uniform", "alibi").reason
        'position ALiBi adds a bias to the logits, which Uniform does not support: its weights are all equal. ...'
    """
    forms: dict[str, None] = {}
    for causal in (True, False):
        layer, reason = _build(mechanism, scheme, causal)
        if reason:
            return Pair(mechanism, scheme, reason=reason)
        if layer is None:
            continue
        what = f"{mechanism} with {scheme}, {causal=}"
        _train(layer, _build(mechanism, None, causal)[0], what)
        forms["training"] = None
        supports = layer.attention.info.supports
        if causal and supports.state:
            _stream(layer, what)
            forms["streaming"] = None
        if causal and supports.prefix:
            _remember(layer, what)
            forms["segments"] = None
    return Pair(mechanism, scheme, tuple(forms))


def _build(mechanism: str, scheme: str | None, causal: bool) -> tuple[AttentionLayer | None, str]:
    """The layer; None where the mechanism does not serve `causal`; why, where the scheme does not fit."""
    attention = _mechanism(mechanism, causal)
    if attention is None:
        return None, ""
    heads, memory = attention.heads, f"recent(length={LENGTH})"
    try:
        layer = AttentionLayer(
            DIM,
            attention,
            heads=HEADS,
            kv_heads=heads.kv_count,
            position=scheme,
            memory=memory if causal and attention.info.supports.prefix else None,
            causal=causal,
            max_length=heads.max_length,
        )
    except UnsupportedError as error:
        return None, str(error)
    return layer.double().eval(), ""


def _mechanism(spec: str, causal: bool) -> Attention | None:
    cls, settings = catalog.resolve(spec)
    options: dict[str, Any] = dict(settings or cls.samples[0])
    info = cls.describe(options)
    if not (info.supports.causal if causal else info.supports.bidirectional):
        return None
    width = DIM // HEADS
    heads = Heads(count=HEADS, key_dim=width, value_dim=width, kv_count=2, causal=causal, max_length=4 * LENGTH)
    return cls(replace(heads, kv_count=None) if info.shares_query_key else heads, **options)


def _input() -> Tensor:
    return randn(2, LENGTH, DIM, seed="position pair", dtype=torch.float64)


def _train(layer: AttentionLayer, plain: AttentionLayer | None, what: str) -> None:
    assert plain is not None
    x = _input()
    with torch.no_grad():
        moved = largest_error(layer(x).hidden, plain(x).hidden)
    require(moved > 1e-6, f"{what}: the scheme moves the output by {moved:.1e} of its size: it is ignored")
    assert layer.position is not None
    layer.train()(x.requires_grad_()).hidden.square().sum().backward()
    layer.eval()
    for name, weight in layer.position.named_parameters():
        reached = weight.grad is not None and bool(weight.grad.isfinite().all()) and bool(weight.grad.any())
        require(reached, f"{what}: no gradient reaches {name} of the scheme")
    require(x.grad is not None and bool(x.grad.isfinite().all()), f"{what}: no finite gradient reaches the input")


@torch.no_grad()
def _stream(layer: AttentionLayer, what: str) -> None:
    x = _input()
    state, pieces = layer.initial_state(len(x)), []
    for piece in x.split(PIECES, 1):
        output = layer(piece, state=state)
        state, _ = output.state, pieces.append(output.hidden)
    assert_close(torch.cat(pieces, 1), layer(x).hidden, tolerance=TOLERANCE, what=f"{what}, pieces with a state")


@torch.no_grad()
def _remember(layer: AttentionLayer, what: str) -> None:
    """A segment does not know where it stands, so absolute schemes are told; others see distances."""
    x = _input()
    assert layer.memory is not None
    assert layer.position is not None
    memory, pieces, first = layer.memory.initial_state(len(x), dtype=x.dtype), [], 0
    for piece in x.split(PIECES, 1):
        where = torch.arange(first, first + piece.shape[1]) if layer.position.absolute else None
        output = layer(piece, memory=memory, positions=where)
        memory, _, first = output.memory, pieces.append(output.hidden), first + piece.shape[1]
    assert_close(torch.cat(pieces, 1), layer(x).hidden, tolerance=TOLERANCE, what=f"{what}, segments with a memory")
