"""What torch's attention masks say; a tensor each, so that a compiled graph can assert it."""

import torch
from jaxtyping import Bool
from torch import Tensor


def is_mask(mask: Tensor) -> bool:
    """Whether it has the dtype of one: True = hidden, or numbers to add."""
    return mask.dtype == torch.bool or mask.is_floating_point()


def triangle(mask: Tensor, diagonal: int) -> Bool[Tensor, ""]:
    """Whether torch's mask hides exactly the keys from a diagonal on, and adds nothing to the others."""
    hidden = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(diagonal)
    if mask.dtype == torch.bool:
        return (mask == hidden).all()
    return (mask == torch.zeros_like(mask).masked_fill(hidden, float("-inf"))).all()


def is_triangle(mask: Tensor, diagonal: int) -> bool:
    """`triangle`, of a mask that learns nothing."""
    return bool(triangle(mask, diagonal)) and not mask.requires_grad


def future_hidden(mask: Tensor) -> Bool[Tensor, ""]:
    """Whether torch's mask hides every key after its query, where the queries are the last positions."""
    queries, keys = mask.shape[-2:]
    if queries > keys:
        return torch.zeros((), dtype=torch.bool, device=mask.device)
    future = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(keys - queries + 1)
    hidden = mask if mask.dtype == torch.bool else mask == float("-inf")
    return (hidden | ~future).all()
