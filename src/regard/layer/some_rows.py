"""What a layer answers to some rows of a batch: the keys of all are kept, averages are computed of those asked for."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.layer.attention_layer import AttentionLayer
from regard.layer.joined import Part
from regard.layer.outputs import LayerOutput
from regard.layer.positions import placed, token_positions
from regard.state import State


def of_rows(
    layer: AttentionLayer,
    x: Float[Tensor, "batch length dim"],
    rows: Sequence[int],
    *,
    key_mask: Bool[Tensor, "batch length"] | None = None,
    positions: Int[Tensor, "*batch length"] | None = None,
    marks: Int[Tensor, "batch length"] | None = None,
    state: State | None = None,
) -> LayerOutput:
    """As `layer(x, ...)` in evaluation; `hidden` (rows, length, dim) is that of some rows.

    Cost: keys and values of the batch; queries, averages and outputs of these rows, where the mechanism can
    (`averages_rows`), there is a state, and neither a memory nor a cache policy reads averages, nor does one product
    make queries, keys and values; else outputs alone are of these rows.

    Args:
        layer: of self-attention.
        rows: of the batch, ascending.
        key_mask, positions, marks, state: as `AttentionLayer.forward`, of the batch.
    """
    given: dict[str, Any] = {"key_mask": key_mask, "positions": positions, "marks": marks}
    picked = torch.tensor(rows, device=x.device)
    if state is None or marks is not None or not _apart(layer):
        got = layer.values(x, **given, state=state)
        return LayerOutput(layer.output(got.values[picked], x[picked]), got.state, got.memory, got.losses)
    scheme, attention, past, length = layer.position, layer.attention, state.length, x.shape[1]
    if scheme is not None and scheme.absolute:
        x = placed(scheme, x, positions, past)
    some = x[picked]
    q, (k, v), bias = layer.projections.queries(some), layer.projections(x), None
    if scheme is not None and scheme.biased:
        bias = scheme.bias(q, *attention.bias_distances(length, length, state))
    if scheme is not None and scheme.transforms:
        at, every = token_positions(scheme, past, length, length, positions, x.device)
        q, k = scheme.transform(q, k, at if at.ndim == 1 else at[picked], every)
    got = attention(q, k, v, key_mask=key_mask, bias=bias, state=state, rows=rows)
    return LayerOutput(layer.output(got.values, some), got.state, None, {})


def _apart(layer: AttentionLayer) -> bool:
    """Whether averages of some rows cost less than those of all."""
    plain = layer.memory is None and layer.cache is None and not isinstance(layer.projections.query, Part)
    return plain and layer.attention.averages_rows
