"""Mutants of `vector_quantized` that score old keys by distance, recent ones by another, or codes without u."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

import copy

import torch
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.attention.routed.vector_quantized import VectorQuantized
from regard.core.attention import Attended, Call
from tests.mutants import mutant

SAMPLE = {"num_codes": 6, "block_size": 4, "relative": True}


def plain(mechanism: VectorQuantized) -> VectorQuantized:
    """A copy without the mistake."""
    other = copy.deepcopy(mechanism)
    other.__class__ = VectorQuantized
    return other


@mutant("reference")
class DistancesOfOldKeys(VectorQuantized):
    """Scores a key by distance that has left the block before the query's."""

    samples = (SAMPLE,)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        other = plain(self)
        other.block_size *= 2
        logits = other.logits(q, k, self.decisions(q, k), call)
        return super().attend(q, k, v, call)._replace(values=reference_softmax(logits, v, call))


@mutant("reference")
class CodesWithoutTheirBias(VectorQuantized):
    """Adds u to the scores of recent keys, and not to those of codes."""

    samples = (SAMPLE,)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        other, codes = plain(self), self.decisions(q, k)
        torch.nn.init.zeros_(other.content_bias)
        block = torch.arange(k.shape[2]) // self.block_size
        recent = block[call.query_start :, None] - block <= 1
        logits = torch.where(recent, *(each.logits(q, k, codes, call) for each in (plain(self), other)))
        return super().attend(q, k, v, call)._replace(values=reference_softmax(logits, v, call))


@mutant("reference")
class DistancesOfTheBlockBefore(VectorQuantized):
    """Scores a recent key by a distance that is greater by a block."""

    samples = (SAMPLE,)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        other, exact = plain(self), plain(self).waves
        other.waves = lambda distance: exact(distance + self.block_size)
        logits = other.logits(q, k, self.decisions(q, k), call)
        return super().attend(q, k, v, call)._replace(values=reference_softmax(logits, v, call))
