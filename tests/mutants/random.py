"""Mutants of hybrids, shortlists and randomized attention: what public code and summaries get almost right."""

# Mechanisms are final, and their steps private; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false, reportPrivateUsage=false

from typing import Any

import torch
from torch import Tensor

from regard.attention.kernel.lara import SMALLEST, Lara, Proposals, _log_density
from regard.attention.kernel.length_switch import LengthSwitch
from regard.attention.routed.lsh import Lsh
from regard.attention.routed.shortlist import Shortlist
from tests.mutants import mutant


@mutant("reference")
class AlphaWithoutItsMean(Lara):
    """Adds a r to the balance heuristic without taking its mean off: the weights of proposals sum to more than 1."""

    def _log_alpha(self, q: Tensor, g: Proposals, asking: Tensor | None) -> Tensor:
        del asking
        squares = g.means.square().sum(-1) / 2
        balance = _log_density(g) - (g.draws @ g.means.mT - squares[:, :, None]).logsumexp(-1)
        ratings = (q @ g.queries.mT).softmax(2)
        return (balance.exp()[:, :, None] + (self.coefficient or 0) * ratings).clamp_min(SMALLEST).log()


@mutant("causality_of_length")
class SwitchesByTotalLength(LengthSwitch):
    """Linear for every query once the sequence is long, as the article has it: a token rewrites what came before."""

    def _switched(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        limit = self.exact_keys
        try:
            self.exact_keys = limit if k.shape[2] <= limit else 0
            return super()._switched(q, k, v, *rest)
        finally:
            self.exact_keys = limit


@mutant("drawn_apart")
class OneProjectionForAllHeads(Shortlist):
    """Ranks the keys of every head by the same random directions."""

    samples = ({"num_keys": 5, "score": "projection", "rank": 4},)

    def drawn(self, generator: torch.Generator) -> Tensor:
        return super().drawn(generator)[:1].expand(self.heads.kv_heads, -1, -1).clone()


@mutant("drawn_apart")
class OneHashForAllRounds(Lsh):
    """Hashes the same way in every round: more rounds meet no other key."""

    def drawn(self, generator: torch.Generator) -> Tensor:
        return super().drawn(generator)[:, :1].expand(-1, self.rounds, -1, -1).clone()
