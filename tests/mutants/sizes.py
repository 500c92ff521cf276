"""Mutants that differ from their parents at long sequences alone, and facts that claim more than is so."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.dense import inner_products, reference_weights
from regard.attention.dense.quantized import Quantized
from regard.core.attention import Attended, Call
from tests.mutants import mutant
from tests.mutants.toys import ToyDense, ToyTable
from tests.mutants.toys.dense import defined


@mutant("causality_beyond_sizes")
class LeaksFarOut(ToyDense):
    """Shows the last key to every query, in sequences that the other checks do not reach."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        pairs = super().allowed(queries, keys, call)
        return pairs | (torch.arange(keys) == keys - 1) if keys > 160 else pairs


@mutant("cost_is_reached")
class ClaimsQuadraticTime(ToyDense):
    """Sums values, and says that it compares all pairs."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return Attended(v.cumsum(2) if call.causal else v.sum(2, keepdim=True).expand_as(v))


@mutant("anchor")
class ClaimsAnAnchor(ToyTable):
    """Has the same weight for every slot, and refuses left padding for nothing."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.equal(q, k)

    def equal(self, q: Tensor, k: Tensor) -> Tensor:
        return (F.gelu(q) @ self.slots[:, :1].to(q.dtype)).expand(-1, -1, -1, k.shape[2])

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return defined(self.equal(q, k), call.visible(q, k), v)


@mutant("close_calls")
class RoundsNothing(Quantized):
    """Is declared to round so much that no input keeps clear of it, and is a plain softmax."""

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: object = None) -> Tensor:
        return reference_weights(inner_products(q, k) / q.shape[-1] ** 0.5, call) @ v
