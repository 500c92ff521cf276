"""What masks of torch and of transformers say; of torch's a tensor each, so that a compiled graph can assert it."""

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import UnsupportedError


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


def key_mask_and_table(
    attention_mask: Tensor | None, query: Tensor, key: Tensor, *, causal: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of keys and the table of a bias that mean the same as a mask of transformers."""
    if attention_mask is None:
        return None, None
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    if attention_mask.dtype != torch.bool:
        # transformers writes the lowest number for -inf
        attention_mask = attention_mask.masked_fill(
            attention_mask <= torch.finfo(attention_mask.dtype).min, float("-inf")
        )
    if attention_mask.shape[1:3] == (1, 1) and attention_mask.dtype == torch.bool:
        return attention_mask[:, 0, 0].expand(batch, -1), None
    attention_mask = attention_mask.expand(-1, -1, queries, -1)
    if causal:
        future = torch.ones(queries, keys, dtype=torch.bool, device=attention_mask.device).triu(keys - queries + 1)
        hidden = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask == float("-inf")
        if not bool((hidden | ~future).all()):
            raise UnsupportedError("this place is causal, and attention_mask lets a query see a later key")
    return None, attention_mask
