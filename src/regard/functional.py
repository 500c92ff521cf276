"""Attention as functions: `attend` without a module, `weights` as the black-box attention matrix."""

from collections.abc import Mapping
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.bias import ScoreBias
from regard.catalog import build, refuse_inputs
from regard.core import Attention
from regard.errors import ConfigError, ShapeError, UnsupportedError, kind_of
from regard.info import Heads
from regard.specs import require_text


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
    require_text(spec)
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
    if not isinstance(mechanism, Attention):
        raise ConfigError(f"weights takes a mechanism that is built, as by build({mechanism!r}, Heads(...))")
    if not isinstance(k, Tensor) or k.ndim != 4:
        raise ShapeError(f"weights: k must be (batch, kv_heads, keys, key_dim), got {kind_of(k)}")
    info, width, keys = mechanism.info, mechanism.heads.value_width, k.shape[2]
    if not (info.linear_in_value or info.affine_in_value):
        raise UnsupportedError(f"{info.title}: the output is not affine in the values, so it has no attention matrix")
    training = mechanism.training
    mechanism.eval()
    shape = (*k.shape[:3], width)
    try:
        zero: Tensor | float = 0.0
        if not info.linear_in_value:
            zero = mechanism(q, k, k.new_zeros(shape), key_mask=key_mask, bias=bias, inputs=inputs).values
        columns: list[Tensor] = []
        for first in range(0, keys, width):
            v = k.new_zeros(shape)
            count = min(width, keys - first)
            v[:, :, first : first + count, :count] = torch.eye(count, dtype=k.dtype, device=k.device)
            values = mechanism(q, k, v, key_mask=key_mask, bias=bias, inputs=inputs).values
            columns.append((values - zero)[..., :count])
    finally:
        mechanism.train(training)
    return torch.cat(columns, -1)
