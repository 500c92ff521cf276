"""What masks of torch and of transformers say; of torch's a tensor each, so that a compiled graph can assert it."""

from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.core import Attention
from regard.errors import UnsupportedError, kind_of
from regard.transforms import require

HIDDEN = -8192.0
"""a number in a mask that is not above this hides its key: exp of its sum with any logit is 0 in every dtype. Masks are
written with -10,000 (old code of BERT; -9,984 in bfloat16), -1e9, the lowest of the dtype. Higher numbers are biases"""
PACKED = (
    "for packed documents pass an attention_mask of queries x keys; causal models make it from position_ids without "
    "attention_mask and with use_cache=False"
)
STATIC_CACHE_REFUSED = (
    "a cache with empty slots after the last position, or one that forgets, is not served: queries must be the last "
    "positions; use the default dynamic cache"
)


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


def hidden_as_infinite(mask: Tensor | None) -> Tensor | None:
    """A mask of numbers with -inf for all that hide a key (`HIDDEN`); others as they are."""
    if mask is None or not mask.is_floating_point():
        return mask
    return mask.masked_fill(mask <= HIDDEN, float("-inf"))


def require_first_keys(form: Attention, table: Tensor) -> None:
    """Refuse a table (True = keep, or numbers to add) that shifts positions on which the weights depend.

    A query of a second document, or behind left padding, does not see the first key, from which slots are counted.

    Raises:
        UnsupportedError: a query sees keys, but not the first one; inside `torch.compile` the graph asserts it.
    """
    if form.info.anchored or form.info.leaks:
        seen = table if table.dtype == torch.bool else table > float("-inf")
        require(
            seen[..., 0] | ~seen.any(-1),
            f"{form.info.title} does not support a mask that hides the first keys of a row, as left padding and packed "
            "documents do: its weights or pattern depend on absolute positions. Pad on the right, or run documents of "
            "unequal length one by one",
        )


def key_mask_and_table(
    attention_mask: object, form: Attention, query: Tensor, key: Tensor, position_ids: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of keys and the table of a bias that mean the same as a mask of transformers.

    Raises:
        UnsupportedError: a mask that is no tensor of truths or numbers, shows the future to a causal place, leaves the
            last slots of a cache empty, or hides first keys from a mechanism that counts from them; documents packed
            into a row, by positions that begin again, without a mask of pairs that separates them.
    """
    key_mask, table, (batch, _, queries, _), keys = None, None, query.shape, key.shape[2]
    if attention_mask is not None:
        if not isinstance(attention_mask, Tensor) or not is_mask(attention_mask):
            raise UnsupportedError(
                f"attention_mask must be boolean (True = keep) or numbers to add, got {kind_of(attention_mask)}"
            )
        table = cast(Tensor, hidden_as_infinite(attention_mask))
        if table.is_floating_point() and not torch.compiler.is_compiling() and not table.requires_grad:
            seen = table == 0
            table = seen if bool((seen | (table == float("-inf"))).all()) else table
        if table.shape[1:3] == (1, 1) and table.dtype == torch.bool:
            key_mask, table = table[:, 0, 0].expand(batch, -1), None
    if table is not None:
        table = table.expand(-1, -1, queries, -1)
        if not form.info.supports.bias:
            form.refuse("an attention_mask of queries x keys, which separates packed documents, say", "bias")
        if form.heads.causal:
            seen = table if table.dtype == torch.bool else table > float("-inf")
            require(future_hidden(~seen), "this place is causal, and attention_mask lets a query see a later key")
            own = seen.diagonal(keys - queries, -2, -1).any(-1)
            require(own | ~seen.any(-1).any(-1), STATIC_CACHE_REFUSED)
        require_first_keys(form, table)
    elif position_ids is not None and queries > 1:
        at = position_ids if key_mask is None else position_ids.masked_fill(~key_mask[:, -queries:], -1)
        goes_on = (at[:, 1:] > at.cummax(-1).values[:, :-1]) | (at[:, 1:] < 0)
        require(
            goes_on,
            f"position_ids begin again inside a row, and no mask keeps its documents apart: {PACKED}",
        )
    return key_mask, table
