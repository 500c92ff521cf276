"""Mutants of hybrids, shortlists and randomized attention: what public code and summaries get almost right."""

# Mechanisms are final, and their steps private; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false, reportPrivateUsage=false

from typing import Any

import torch
from torch import Tensor

from regard.attention.kernel.lara import SMALLEST, Lara, Proposals, _log_density
from regard.attention.kernel.length_switch import LengthSwitch
from regard.attention.kernel.local_linear import Keys, LocalLinear
from regard.attention.kernel.mixed_chunk import MixedChunk
from regard.attention.kernel.randomized import Randomized
from regard.attention.lowrank._projections import Mixtures
from regard.attention.lowrank.linformer import Linformer
from regard.attention.routed.lsh import Lsh
from regard.attention.routed.shortlist import Shortlist
from regard.core.attention import Call
from tests.mutants import mutant


@mutant("reference")
class NoiseBeforeTheScale(Randomized):
    """Adds unit noise to vectors that are scaled afterwards, as the published code does, and calls it exact."""

    def setup(self) -> None:
        super().setup()
        self.deviation = self.heads.key_dim**-0.25


@mutant("state_splits")
class RestartsItsNoise(Randomized):
    """Numbers the queries of a call from 0: a token's noise depends on how the sequence was cut."""

    def _noise(self, q: Tensor, first: int) -> tuple[Tensor, Tensor]:
        del first
        return super()._noise(q, 0)


@mutant("reference")
class AlphaWithoutItsMean(Lara):
    """Adds a r to the balance heuristic without taking its mean off: the weights of proposals sum to more than 1."""

    def _log_alpha(self, q: Tensor, g: Proposals, asking: Tensor | None) -> Tensor:
        del asking
        squares = g.means.square().sum(-1) / 2
        balance = _log_density(g) - (g.draws @ g.means.mT - squares[:, :, None]).logsumexp(-1)
        ratings = (q @ g.queries.mT).softmax(2)
        return (balance.exp()[:, :, None] + (self.coefficient or 0) * ratings).clamp_min(SMALLEST).log()


@mutant("right_padding")
class LandmarksOfPadding(Lara):
    """Takes landmark means over every slot, hidden ones too."""

    def _proposals(self, q: Tensor, k: Tensor, asking: Tensor | None, real: Tensor | None) -> Proposals:
        del asking, real
        return super()._proposals(q, k, None, None)


@mutant("batch_independence")
class LandmarksOfTheBatch(Lara):
    """Shares its proposals with the whole batch."""

    def _proposals(self, q: Tensor, k: Tensor, asking: Tensor | None, real: Tensor | None) -> Proposals:
        own = super()._proposals(q, k, asking, real)
        return Proposals(*(x.mean(0, keepdim=True).expand_as(x) for x in own))


@mutant("reference")
class CountsTheWindowTwice(LocalLinear):
    """A far field over every key, those of the window too."""

    def _far(self, q: Tensor, keys: Keys, start: Tensor, lag: int) -> Any:
        del lag
        return super()._far(q, keys, start, 0)


@mutant("state_splits")
class ForgetsWhatLeavesTheWindow(LocalLinear):
    """Drops the key that leaves the window behind the last query."""

    def _later(self, length: int, keys: Keys, total: Tensor, new: int) -> Any:
        later = super()._later(length, keys, total, new)
        return later.with_tensors({**later.tensors(), "sum": total})


@mutant("causality")
class SumsItsOwnChunk(MixedChunk):
    """Sums over the chunks up to a query's own: it is counted twice, and its later tokens are seen."""

    @staticmethod
    def _before(x: Tensor, past: Tensor, axis: int) -> Tensor:
        sums = MixedChunk._before(x, past, axis)
        last = sums.shape[axis] - 1
        return torch.cat([sums.narrow(axis, 1, last), sums.narrow(axis, last, 1)], axis)


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


@mutant("causality")
class ChoosesWithTheFuture(Shortlist):
    """Lists the best keys of the sequence, then strikes those that a query may not see."""

    def lists(self, q: Tensor, scored: Tensor, call: Call) -> Tensor:
        lists = super().lists(q, scored, call._replace(causal=False))
        at = torch.arange(q.shape[2]) + (scored.shape[2] - q.shape[2] if call.causal else scored.shape[2])
        return lists.masked_fill(lists > at[:, None], -1)


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


@mutant("drawn_apart")
class OneMixtureForAllHeads(Linformer):
    """Mixes the keys of every head as those of the first."""

    def setup(self) -> None:
        super().setup()
        assert isinstance(self.mixtures, Mixtures)
        with torch.no_grad():
            self.mixtures.key.copy_(self.mixtures.key[:1].expand_as(self.mixtures.key))
