"""Mutants of kernel mechanisms: normalisers, stabilisers, decay and chunk boundaries that public code gets wrong."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from typing import Any
from unittest import mock

import torch
from torch import Tensor

from regard.attention.kernel.linear import Linear
from regard.attention.kernel.performer import Performer
from regard.core.attention import Attended, Call, Summary
from regard.engines.sums import passes
from regard.engines.sums.passes import CHUNK
from regard.engines.sums.step import Averaged
from tests.mutants import mutant


@mutant("reference")
class EpsilonInTheDenominator(Linear):
    """Divides by the total + 1e-6, as the paper's code does: rows of small weights shrink."""

    def average(self, *args: Any, **given: Any) -> Averaged:
        found = super().average(*args, **given)
        return found._replace(values=found.values * (found.total / (found.total + 1e-6))[..., None])


@mutant("reference")
class StabiliserNotRescaled(Performer):
    """Carries its sums from chunk to chunk as they are when a larger key raises their scale."""

    samples = ({"num_features": 16},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        def unscaled(before: Tensor, s: Any, chunk: int, into: Tensor) -> Tensor:
            del s, chunk
            return into.copy_(before)

        with mock.patch.object(passes, "carried", unscaled):
            return super().attend(q, k, v, call)


@mutant("state_splits")
class StateNotRescaled(Performer):
    """Keeps the scale of the first piece for the sums of the next."""

    samples = ({"num_features": 16},)

    def after(self, past: Summary, result: Averaged, keys: int) -> Summary:
        state = super().after(past, result, keys)
        first = torch.where(past["top"].isneginf(), state["top"], past["top"])
        return Summary({**state.content, "top": first}, state.length)


@mutant("reference")
class BoundaryCountedTwice(Linear):
    """Each chunk starts with the last key of the one before it, which the state already holds."""

    def average(self, q: Tensor, k: Tensor, v: Tensor, sum: Tensor, *args: Any, **given: Any) -> Averaged:
        if not self.heads.causal or q.shape[2] != k.shape[2] or given["key_mask"] is not None:
            return super().average(q, k, v, sum, *args, **given)
        parts = []
        for a in range(0, max(q.shape[2], 1), CHUNK):
            keys, b = slice(max(a - 1, 0), a + CHUNK), a + CHUNK
            parts.append(super().average(q[:, :, a:b], k[:, :, keys], v[:, :, keys], sum, *args, **given))
            sum = parts[-1].sum
        values, total = (torch.cat([part[i] for part in parts], 2) for i in (0, 1))
        return parts[-1]._replace(values=values, total=total)
