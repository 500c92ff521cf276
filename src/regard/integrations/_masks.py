"""Masks of torch and of transformers, and what they mean for a mechanism."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.core.attention import Attention
from regard.core.compiling import require
from regard.core.errors import UnsupportedError, kind_of

HIDDEN = -8192.0
"""a number in a mask that is not above this hides its key: exp of its sum with any logit is 0 in every dtype. Masks are
written with -10,000 (old code of BERT; -9,984 in bfloat16), -1e9, the lowest of the dtype. Higher numbers are biases"""
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


def as_infinite(mask: Tensor | None) -> Tensor | None:
    """A mask of numbers with -inf for all that hide a key (`HIDDEN`); others as they are."""
    if mask is None or not mask.is_floating_point():
        return mask
    return mask.masked_fill(mask <= HIDDEN, float("-inf"))


def require_first_keys(form: Attention, table: Tensor) -> None:
    """Refuse a table under which a query sees keys, but not the first one, where weights depend on absolute positions.

    Raises:
        UnsupportedError: it is left padding, or documents packed into a row.
    """
    if form.info.anchored or form.info.leaks:
        seen = table if table.dtype == torch.bool else table > float("-inf")
        require(
            seen[..., 0] | ~seen.any(-1),
            f"{form.info.title} does not support a mask that hides the first keys of a row, as left padding and packed "
            "documents do: its weights depend on absolute positions. Pad on the right, or run each document alone",
        )


def key_mask_and_table(
    attention_mask: object, form: Attention, query: Tensor, key: Tensor, further: Mapping[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of keys and the table of a bias that mean the same as a mask of transformers.

    Args:
        further: arguments of transformers; `position_ids` and `cu_seq_lens_q` tell of documents packed into a row.

    Raises:
        UnsupportedError: `form` cannot do what they mean.
    """
    key_mask, table, (batch, _, queries, _), keys = None, None, query.shape, key.shape[2]
    if attention_mask is not None:
        if not isinstance(attention_mask, Tensor) or not is_mask(attention_mask):
            raise UnsupportedError(
                f"attention_mask must be boolean (True = keep) or numbers to add, got {kind_of(attention_mask)}"
            )
        table = cast(Tensor, as_infinite(attention_mask))
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
            require(
                future_hidden(~seen),
                "attention_mask lets a query see a later key, and this place is causal: pass a mask "
                "that hides later keys, or replace with causal=False",
            )
            own = seen.diagonal(keys - queries, -2, -1).any(-1)
            require(own | ~seen.any(-1).any(-1), STATIC_CACHE_REFUSED)
        require_first_keys(form, table)
    elif queries > 1:
        ends, at = further.get("cu_seq_lens_q"), further.get("position_ids")
        goes_on = torch.tensor(ends is None or len(ends) == 2)
        if at is not None:
            at = at if key_mask is None else at.masked_fill(~key_mask[:, -queries:], -1)
            goes_on = goes_on & ((at[:, 1:] > at.cummax(-1).values[:, :-1]) | (at[:, 1:] < 0)).all()
        require(
            goes_on,
            "position_ids or cu_seq_lens_q tell of packed documents in a row, and no mask keeps them apart: pass an "
            "attention_mask of queries x keys. Causal models make it without attention_mask and with use_cache=False",
        )
    return key_mask, table
