"""Attention as functions: `attend` without a module, `weights` as the black-box attention matrix."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.catalog import build, refuse_inputs
from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError, ShapeError, UnsupportedError, kind_of
from regard.core.info import Heads
from regard.core.types_of import typed
from regard.specs import require_text


@typed
def attend(
    q: Float[Tensor, "batch heads queries query_dim"],
    k: Float[Tensor, "batch kv_heads keys key_dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    spec: str = "softmax",
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: ScoreBias | None = None,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries value"]:
    """Attention without weights, as one function.

    Args:
        q, k, v: queries, keys, values; fewer key heads than query heads are shared by groups.
        spec: the mechanism, such as `local(window=128)`.
        causal: lower-right: the queries are the last positions. (torch's `is_causal` is upper-left.)
        key_mask: True = keep.
        bias: added to the logits.
        scale: of the logits; None: the mechanism's own.

    Returns:
        The values.

    Raises:
        UnsupportedError: the mechanism has weights (use `AttentionLayer`), or does not support what is asked.
        ConfigError, ShapeError: as `build` and `Attention.forward`.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> last = attend(q[:, :, 3:], k, v, "local(window=2)", causal=True)  # the queries are the last positions
        >>> torch.allclose(last, attend(q, k, v, "local(window=2)", causal=True)[:, :, 3:], atol=1e-6)
        True
    """
    if (
        not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor))
        or min(q.ndim, k.ndim, v.ndim) < 2
    ):
        raise ShapeError(
            f"attend: q, k and v must be tensors (batch, heads, length, dim), got {', '.join(map(kind_of, (q, k, v)))}"
        )
    if not q.is_floating_point():
        raise ShapeError(f"attend: q, k and v must be floating, got {q.dtype}")
    if q.shape[1] % max(k.shape[1], 1):
        raise ShapeError(
            f"attend: q, k and v are (batch, heads, length, dim), and q has {q.shape[1]} heads, k {k.shape[1]}, which "
            "does not divide that; .transpose(1, 2) those that are (batch, length, heads, dim)"
        )
    sizes = q.shape[1], k.shape[-1], v.shape[-1], q.shape[-1], k.shape[1]
    require_text(spec)
    if type(causal) is not bool or not isinstance(scale, float | int | None):
        raise ConfigError(f"attend: causal is True or False, and scale a number or None; got {causal!r} and {scale!r}")
    mechanism = _shared(spec, sizes, causal, scale, q.device, q.dtype)
    return mechanism(q, k, v, key_mask=key_mask, bias=bias).values


@lru_cache(maxsize=128)
def _shared(
    spec: str,
    sizes: tuple[int, int, int, int, int],
    causal: bool,
    scale: float | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Attention:
    count, key_dim, value_dim, query_dim, kv_count = sizes
    heads = Heads(
        count=count, key_dim=key_dim, value_dim=value_dim, query_dim=query_dim, kv_count=kv_count, causal=causal
    )
    with torch.inference_mode(False):  # what is kept here serves training too
        mechanism = build(spec, heads) if scale is None else build(spec, heads, scale=scale)
        mechanism = mechanism.eval().to(device=device, dtype=dtype)
    if next(mechanism.parameters(), None) is not None:
        raise UnsupportedError(
            f"attend serves mechanisms without weights, and {spec!r} has some; use AttentionLayer(dim, {spec!r}, ...)"
        )
    refuse_inputs(mechanism.info, spec, "attend")
    return mechanism


@torch.no_grad()
def weights(
    mechanism: Attention,
    q: Float[Tensor, "batch heads queries query_dim"],
    k: Float[Tensor, "batch kv_heads keys key_dim"],
    *,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: ScoreBias | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """The effective attention matrix of any mechanism whose output is affine in the values.

    Feeds the identity as values, in slices of the value width, and subtracts the output of zero values where the
    mechanism is affine only. In evaluation mode; the mechanism is left in the mode it was in.

    Raises:
        ConfigError: no mechanism, but the name of one.
        UnsupportedError: the output is not affine in the values, so no such matrix exists.

    Example:
        >>> import torch
        >>> from regard import Heads, build
        >>> q, k = torch.randn(2, 1, 1, 4, 8)
        >>> weights(build("softmax", Heads(count=1, key_dim=8, causal=True)), q, k).sum(-1).round(decimals=4)
        tensor([[[1., 1., 1., 1.]]])
    """
    _require_matrix(mechanism, k)

    def values(v: Tensor) -> Tensor:
        return mechanism(q, k, v, key_mask=key_mask, bias=bias, inputs=inputs).values

    training = mechanism.training
    mechanism.eval()
    try:
        return torch.cat([columns for _, columns in _by_identity(mechanism, k, values)], -1)
    finally:
        mechanism.train(training)


@torch.no_grad()
def weight_columns(
    mechanism: Attention,
    q: Float[Tensor, "batch heads length query_dim"],
    k: Float[Tensor, "batch kv_heads length key_dim"],
    *,
    bias: ScoreBias | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[int, Float[Tensor, "batch heads rows columns"]]]:
    """The matrix that `weights` gives for queries and keys of the same tokens, some columns at a time.

    No tensor of length x length is made. A causal mechanism that is `mergeable`, one softmax over its keys, takes two
    calls' work instead of length / value width: with S a block of keys, p_ij = m_iS p^S_ij for j in S. The masses m_iS
    are the output for indicators of blocks as values, and p^S is the matrix of a call with these keys alone.

    Yields:
        The first column, and columns from there on, of the last rows. Rows before these are 0 and left out.

    Raises:
        ConfigError, UnsupportedError: as `weights`, at the first step.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 1, 4, 2)
        >>> mechanism = build("softmax", Heads(count=1, key_dim=2, causal=True))
        >>> [(first, tuple(columns.shape)) for first, columns in weight_columns(mechanism, q, k)]
        [(0, (1, 1, 4, 2)), (2, (1, 1, 2, 2))]
    """
    _require_matrix(mechanism, k)
    length, training = k.shape[2], mechanism.training
    mechanism.eval()
    try:
        if not (length and mechanism.info.mergeable and mechanism.heads.causal):
            yield from _by_identity(mechanism, k, lambda v: mechanism(q, k, v, bias=bias, inputs=inputs).values)
            return
        width = mechanism.heads.value_width
        blocks = torch.arange(length, device=k.device) // width
        masses = torch.cat(
            [
                mechanism(q, k, _indicators(k, blocks, first, width), bias=bias, inputs=inputs).values
                for first in range(0, -(-length // width), width)
            ],
            -1,
        )
        for at, first in enumerate(range(0, length, width)):
            stop = min(first + width, length)
            v = _indicators(k[:, :, first:stop], torch.arange(stop - first, device=k.device), 0, width)
            behind = {name: x[:, :, first:] for name, x in (inputs or {}).items()}
            part = mechanism(
                q[:, :, first:], k[:, :, first:stop], v, bias=_part(bias, first, stop), inputs=behind, query_start=0
            )
            yield first, part.values[..., : stop - first] * masses[:, :, first:, at, None]
    finally:
        mechanism.train(training)


def _require_matrix(mechanism: Attention, k: Tensor) -> None:
    if not isinstance(mechanism, Attention):
        raise ConfigError(f"weights takes a mechanism that is built, as by build({mechanism!r}, Heads(...))")
    if not isinstance(k, Tensor) or k.ndim != 4:
        raise ShapeError(f"weights: k must be (batch, kv_heads, keys, key_dim), got {kind_of(k)}")
    info = mechanism.info
    if not (info.linear_in_value or info.affine_in_value):
        raise UnsupportedError(f"{info.title}: the output is not affine in the values, so it has no attention matrix")


def _by_identity(mechanism: Attention, k: Tensor, values: Callable[[Tensor], Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Columns of the matrix, from the output for the identity as values, in slices of the value width."""
    width, keys = mechanism.heads.value_width, k.shape[2]
    numbers = torch.arange(keys, device=k.device)
    zero: Tensor | float = 0.0
    if not mechanism.info.linear_in_value:
        zero = values(k.new_zeros(*k.shape[:3], width))
    for first in range(0, max(keys, 1), width):
        yield first, (values(_indicators(k, numbers, first, width)) - zero)[..., : min(width, keys - first)]


def _indicators(k: Tensor, blocks: Tensor, first: int, width: int) -> Tensor:
    """Values of `width` numbers: number c of a key is 1 if it is of block first + c, else 0."""
    rows = blocks[:, None] == torch.arange(first, first + width, device=k.device)
    return rows.to(k.dtype).expand(*k.shape[:2], -1, -1).contiguous()


def _part(bias: ScoreBias | None, first: int, stop: int) -> ScoreBias | None:
    """The bias of keys first .. stop - 1 and the queries from the first of them on. Distances stay what they are."""
    if bias is None:
        return None
    query, table = bias.query, bias.table
    return replace(
        bias,
        query=None if query is None else query[:, :, first:],
        table=None if table is None else table[:, :, first:, first:stop],
    )
