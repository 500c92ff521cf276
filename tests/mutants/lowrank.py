"""Mutants of Synthesizers and low-rank attention: what a reading of the papers gets almost right."""

# Mechanisms are final, and their steps private; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false, reportPrivateUsage=false

import torch
from torch import Tensor

from regard.attention.lowrank.linformer import Linformer
from regard.attention.lowrank.nystrom import Nystrom
from regard.attention.synthesized import Logits
from regard.attention.synthesized.factorized_dense_synthesizer import FactorizedDenseSynthesizer
from regard.attention.synthesized.factorized_random_synthesizer import FactorizedRandomSynthesizer
from regard.attention.synthesized.mixture_synthesizer import MixtureSynthesizer
from regard.attention.synthesized.random_synthesizer import RandomSynthesizer
from regard.core.attention import Attended, Call
from tests.mutants import mutant


@mutant("state_splits")
class RowsOfTheCall(RandomSynthesizer):
    """Takes the rows of the matrix from the first on at every call, wherever the queries stand."""

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        del first
        return super().logits(q, k, 0, slots)


@mutant("prefix")
class RowsOfTheQueries(FactorizedRandomSynthesizer):
    """Numbers queries behind leading keys from 0, as if nothing had come before them."""

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        del first
        return super().logits(q, k, 0, slots)


@mutant("reference")
class TilesBothRows(FactorizedDenseSynthesizer):
    """Repeats both rows, each with its own period, in place of giving every slot a product of its own."""

    samples = ({"block_size": 4},)

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        table = super().logits(q, k, first, slots).table
        assert table is not None
        size = self.within.shape[1]
        at = torch.arange(slots, device=q.device)
        return Logits(table=table[..., (at % (slots // size) * size + at % size)])


@mutant("reference")
class MixesWeightsNotLogits(MixtureSynthesizer):
    """Adds up the parts without their shares: the learned balance changes nothing."""

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        kept = self.balance
        try:
            self.balance = torch.nn.Parameter(torch.zeros_like(kept))
            return super().logits(q, k, first, slots)
        finally:
            self.balance = kept


@mutant("batch_independence")
class NormOfTheBatch(Nystrom):
    """Begins the inverse of every matrix with the largest norm of the batch, as the first published code did."""

    def _inverse(self, a: Tensor) -> Tensor:
        own, shared = a.sum(-2).amax(-1), a.sum(-2).amax()
        ratio = (own / shared)[..., None, None]  # (r a)^+ r is a^+, and r Z_0 of r a is a^T over the shared norm
        return ratio * super()._inverse(ratio * a)


@mutant("right_padding")
class DividesByTheWholeRun(Nystrom):
    """Takes runs of slots, whose hidden tokens count in the number that a mean is divided by."""

    def _landmarks(self, x: Tensor, real: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
        hidden = torch.zeros(x.shape[0], x.shape[2], dtype=torch.bool) if real is None else ~real
        return super()._landmarks(x.masked_fill(hidden[:, None, :, None], 0), None, count)


@mutant("reference")
class LandmarksOfNoToken(Nystrom):
    """Keeps landmarks to which no token belongs, as vectors of 0."""

    samples = ({"num_landmarks": 16},)

    def _landmarks(self, x: Tensor, real: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
        means, there = super()._landmarks(x, real, count)
        return means, None if there is None else torch.ones_like(there)


@mutant("reference_gradients")
class InverseWithoutGradient(Nystrom):
    """Holds the inverse fixed: landmarks learn from what stands beside it only."""

    samples = ({"num_landmarks": 5, "pinv": "exact"},)

    def _inverse(self, a: Tensor) -> Tensor:
        return super()._inverse(a.detach())


@mutant("right_padding")
class MaximaOfPadding(Linformer):
    """Lets the 0 of a hidden position stand for the largest number of its block."""

    samples = ({"rank": 4, "projection": "max"},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(key_mask=None))
