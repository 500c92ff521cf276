"""The routed template: discrete choices say which keys a query meets."""

from abc import abstractmethod
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.core import Attention, Call


class Routed(Attention):
    """Template: o_i = sum_j softmax_j(z_ij) v_j, where z_ij follows from choices (buckets, lists of slots, codes).

    Choices are made twice, in one form, a tensor or a tuple of tensors: `decisions` makes those of the algorithm, and
    `choices` those of the definition. `logits` is the definition under given choices, so that `reference` can replay
    `decisions` where a tie or a rounding would choose otherwise.

    `attend` decides, keeps with `Call.remember` what later calls need of each key, and averages by an engine.
    `state_layout` adds to keys and values what is kept besides them:

        queries, keys = self.decisions(q, k)
        slots, call = call.remember(k=k, v=v, buckets=keys)
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
        """The mask of the queries, True = real, where one projection serves as query and key; None: no mask."""
        if call.key_mask is None or not self.info.shares_query_key:
            return None
        return call.key_mask[:, call.key_mask.shape[1] - q.shape[2] :]
