"""The arguments and the answer of a call, and the merge of parts of one softmax."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError
from regard.core.state import Slots, State
from regard.core.types_of import typed


class Attended(NamedTuple):
    """The answer of a mechanism.

    values: (batch, heads, queries, value). state: only if one was passed. losses: unweighted, exactly `info.losses` in
    training, empty in evaluation. lse: (batch, heads, queries), the log-sum-exp of the logits; only if asked for, from
    mechanisms that are `mergeable`.
    """

    values: Tensor
    state: State | None = None
    losses: Mapping[str, Tensor] = {}
    lse: Tensor | None = None


class Call(NamedTuple):
    """The arguments of a call besides q, k and v, as `attend` and `reference` of a mechanism get them.

    `Attention.forward` makes it of its arguments once these are checked. Keys and values under the mask are 0 by then,
    and inputs under it have their neutral value. Slots count every key ever given, from 0.

    Example:
        Two queries, the last of three keys, of which the first is padding:

        >>> q, k = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
        >>> call = Call(key_mask=torch.tensor([[False, True, True]]), causal=True, query_start=1)
        >>> call.visible(q, k)[0, 0]
        tensor([[False,  True, False],
                [False,  True,  True]])
    """

    key_mask: Tensor | None = None
    """(batch, keys) of this call, True = real; None: all real"""
    bias: ScoreBias | None = None
    """added to the logits"""
    marks: Tensor | None = None
    """(batch, keys), integer labels whose meaning the mechanism declares; None: no token has one"""
    inputs: Mapping[str, Tensor] = {}
    """exactly those of `info.inputs`, each (batch, heads, slots, width)"""
    state: State | None = None
    """the past, never to be modified; None: nothing came before, and nothing is kept"""
    causal: bool = False
    """each query sees its own slot and earlier ones only"""
    past: int = 0
    """slots before this call's keys"""
    query_start: int = 0
    """the slot of the first query"""
    lse: bool = False
    """whether the log-sum-exp is asked for"""
    paired: bool = False
    """not causal: the queries are the tokens of the keys, so that the key mask hides them too"""

    def visible(self, q: Tensor, k: Tensor) -> Bool[Tensor, "batch 1 queries keys"]:
        """The allowed pairs of a call without a state as one tensor, True = allowed, for definitions."""
        i = torch.arange(self.query_start, self.query_start + q.shape[2], device=q.device)[:, None]
        j = torch.arange(k.shape[2], device=q.device)
        seen = (j <= i if self.causal else (i >= 0) & (j >= 0))[None, None]
        return seen if self.key_mask is None else seen & self.key_mask[:, None, None, :]

    def remember(self, **new: Tensor) -> tuple[Mapping[str, Tensor], "Call"]:
        """The per-slot entries of `state_layout` for every slot so far, and the call with their mask and their state.

        Args:
            new: the entries of this call's keys. Without a state, they and the call are returned as they are.
        """
        if self.state is None:
            return new, self
        assert isinstance(self.state, Slots)
        grown = self.state.append(self.key_mask, **new)
        kept = grown.view()
        return kept, Call(kept.get("key_mask"), self.bias, self.marks, self.inputs, grown, *self[5:])


def by_definition(
    reference: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, call: Call, **replay: Any
) -> Tensor:
    """The values of a mechanism's `reference`; 0 without queries or keys, which that need not serve."""
    if q.numel() and k.shape[2]:
        return reference(q, k, v, call, **replay)
    return v.new_zeros(*q.shape[:3], v.shape[3])


@typed
def merge(
    parts: Sequence[tuple[Float[Tensor, "*rows value"], Float[Tensor, "*rows"]]],
) -> tuple[Float[Tensor, "*rows value"], Float[Tensor, "*rows"]]:
    """One softmax from parts over disjoint sets of keys: Z = logsumexp_r z_r, o = sum_r exp(z_r - Z) o_r.

    Args:
        parts: (values, lse) each; lse is the log-sum-exp of the part's logits, -inf for a row without keys.

    Returns:
        (values in their dtype, lse) over the union; a row without any key has value 0 and lse -inf.

    Example:
        >>> import torch
        >>> v = torch.ones(1, 2)
        >>> merge([(v, torch.zeros(1)), (3 * v, torch.zeros(1))])[0]
        tensor([[2., 2.]])
    """
    if not len(parts):
        raise ShapeError("merge takes (values, lse) of at least one part")
    values, lse = (torch.stack(x) for x in zip(*parts, strict=True))
    highest = lse.amax(0).detach()
    weight = torch.exp(lse - torch.where(highest.isinf(), 0.0, highest))
    total = weight.sum(0)
    safe = torch.where(total == 0, 1.0, total)
    seen = values.masked_fill((weight == 0)[..., None], 0.0)  # a part that weighs 0 may hold NaN
    merged = ((weight[..., None] * seen).sum(0) / safe[..., None]).to(values.dtype)
    return merged, torch.where(total == 0, float("-inf"), torch.log(safe) + highest)
