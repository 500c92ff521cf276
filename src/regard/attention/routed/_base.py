"""The routed template: discrete choices say which keys a query meets."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.core import Attention, Call
from regard.state import Slots


class Routed(Attention):
    """Template: o_i = sum_j softmax_j(z_ij) v_j, where z_ij follows from choices (buckets, lists of slots, codes).

    A choice is made twice. `decisions` makes those of the algorithm, `choices` those of the definition, in the same
    form, a tensor or a tuple of tensors; `logits` is the definition under given choices, so that `reference` may replay
    `decisions` where a tie or a rounding would choose otherwise. `attend` decides, keeps what it will need of each key
    with `remember`, and averages by an engine; `state_layout` names what is kept besides keys and values.
    """

    @abstractmethod
    def decisions(self, q: Tensor, k: Tensor) -> Any:
        """The choices that `attend` makes in a call of its own; `reference` takes them to replay them."""

    @abstractmethod
    def choices(self, q: Tensor, k: Tensor, call: Call) -> Any:
        """The choices by definition, explicit and slow, in the form of `decisions`."""

    @abstractmethod
    def logits(self, q: Tensor, k: Tensor, choices: Any, call: Call) -> Float[Tensor, "batch heads queries keys"]:
        """The logits by definition under given choices, -inf where a query does not meet a key.

        What a query may not see (`call.visible`) need not be hidden.
        """

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Any = None) -> Tensor:
        """Every choice, then every logit, then the softmax of each row; with `decisions`, under these choices."""
        choices = self.choices(q, k, call) if decisions is None else decisions
        return reference_softmax(self.logits(q, k, choices, call), v, call)

    def query_mask(self, q: Tensor, call: Call) -> Bool[Tensor, "batch queries"] | None:
        """Which queries are real, where one projection serves as query and key; None: all, or nobody knows."""
        if call.key_mask is None or not self.info.shares_query_key:
            return None
        return call.key_mask[:, call.key_mask.shape[1] - q.shape[2] :]


def remember(slots: Mapping[str, Tensor], call: Call) -> tuple[Mapping[str, Tensor], Call]:
    """What `state_layout` keeps of each key, of every slot so far, and the call with their mask and the state behind.

    Args:
        slots: of this call's keys, by the names of `state_layout`.
        call: whose state they join.

    Returns:
        `slots` itself and the call without a state; else those of the past and the new ones.
    """
    if call.state is None:
        return slots, call
    assert isinstance(call.state, Slots)
    grown = call.state.append(call.key_mask, **slots) if slots["k"].shape[2] else call.state
    kept = grown.view()
    return kept, replace(call, key_mask=kept.get("key_mask"), state=grown)
