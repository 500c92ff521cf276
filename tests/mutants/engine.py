"""Mutants of the sparse engine: patterns, their parts, and the keys that they keep."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

import torch
from torch import Tensor

from regard import patterns as masks
from regard.attention.sparse.local import Local
from regard.attention.sparse.local_atrous import LocalAtrous
from regard.attention.sparse.pattern import Pattern
from regard.core.attention import Call
from regard.engines.tiles import Dropout
from tests.mutants import mutant


@mutant("partition")
class CountsTheOverlapTwice(LocalAtrous):
    """Computes the window and the residue class by themselves, each with the pairs that are in both."""

    def setup(self) -> None:
        super().setup()
        parts = masks.disjoint(masks.window(self.window), masks.strided(self.dilation))
        self.pattern = masks.causal & parts if self.heads.causal else parts


class _Hasty(masks.Pattern):  # type: ignore[misc]
    """Forgets what only the very next query sees."""

    def alive(self, key_positions: Tensor, first_query: int) -> Tensor:
        return super().alive(key_positions, first_query + 1)


@mutant("state_splits")
class ForgetsOneQueryEarly(Pattern):
    """Drops the keys of a block before its last query has come."""

    samples = ({"rule": "block(5)"},)

    def setup(self) -> None:
        super().setup()
        self.pattern = _Hasty(self.pattern.rule, self.pattern.text, distances=self.pattern.distances)


@mutant("dropout")
class DropsOtherWeightsBackwards(Local):
    """Draws again for the backward pass."""

    def _tiles(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, key_positions: Tensor | int, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        values, lse = super()._tiles(q, k, v, call, key_positions, dropout)
        if dropout is None:
            return values, lse
        again = super()._tiles(q, k, v, call, key_positions, dropout._replace(seed=dropout.seed + 1))[0]
        return again + (values - again).detach(), lse


@mutant("dropout")
class DropsTheSameInEveryHead(Local):
    """Takes every head for the first one."""

    def _tiles(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, key_positions: Tensor | int, dropout: Dropout | None
    ) -> tuple[Tensor, Tensor]:
        group = self.heads.count // k.shape[1]
        parts = []
        for head in range(self.heads.count):
            one, kv = slice(head, head + 1), slice(head // group, head // group + 1)
            parts.append(super()._tiles(q[:, one], k[:, kv], v[:, kv], call, key_positions, dropout))
        return torch.cat([values for values, _ in parts], 1), torch.cat([lse for _, lse in parts], 1)
