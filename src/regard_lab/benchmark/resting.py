"""Declared inputs where there is no layer that projects them."""

import torch
from torch import Tensor

from regard.core.attention import Attention


@torch.no_grad()
def resting_inputs(mechanism: Attention, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The declared inputs of a call as a layer gives them whose projections are 0: gates as they begin.

    Example:
        >>> from regard import Heads, build
        >>> q = torch.zeros(1, 1, 2, 4)
        >>> heads = Heads(count=1, key_dim=4, causal=True)
        >>> resting_inputs(build("forgetting", heads), q, q)["log_gate"].exp().flatten()
        tensor([0.5000, 0.5000])
        >>> resting_inputs(build("softmax", heads), q, q)
        {}
    """
    if not mechanism.info.inputs:
        return {}
    slots = {"queries": q.shape[2], "keys": k.shape[2]}
    raw: dict[str, Tensor] = {}
    for name, each in mechanism.raw_inputs.items():
        heads, width = each.shape(mechanism.heads)
        raw[name] = q.new_zeros(q.shape[0], heads, slots[each.slots], width)
    return dict(mechanism.activate(raw))
