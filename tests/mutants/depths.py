"""What runs the blocks of a model, broken on purpose, each with the check of `check_part` that must catch it."""

# Schemes are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.models.blocks import Block
from regard.models.depth._base import Looped, Threads
from regard.models.depth.fixed import Fixed
from regard.models.depth.universal import Halting, Universal
from tests.mutants import mutant


@mutant("halting_average")
class AveragesOldAndNew(Universal):
    """Averages by new = p h + (1 - p) old, whose weights are others."""

    def after(self, halting: Halting, hidden: Tensor, *, last: bool) -> Halting:
        got = super().after(halting, hidden, last=last)
        p = self.odds(got.hidden)[..., None]
        mean = torch.where(halting.active[..., None], p * got.hidden + (1 - p) * halting.mean, halting.mean)
        return got._replace(mean=mean)


@mutant("halting_average")
class LosesTheRest(Universal):
    """Gives the last step its own probability, so that weights sum to less than 1."""

    def after(self, halting: Halting, hidden: Tensor, *, last: bool) -> Halting:
        got = super().after(halting, hidden, last=last)
        stops = (halting.active & ~got.active)[..., None]
        p = self.odds(got.hidden)[..., None]
        return got._replace(mean=torch.where(stops, halting.mean + p * got.hidden, got.mean))


@mutant("halting_average")
class GoesOn(Universal):
    """A token that has halted is still changed, and others attend to what it becomes."""

    def after(self, halting: Halting, hidden: Tensor, *, last: bool) -> Halting:
        return super().after(halting, hidden, last=last)._replace(hidden=hidden)


@mutant("ponder_slope")
class CountsAlone(Universal):
    """A loss of N + R without a slope."""

    def after(self, halting: Halting, hidden: Tensor, *, last: bool) -> Halting:
        got = super().after(halting, hidden, last=last)
        return got._replace(rest=got.rest.detach() + 0 * got.total)


@mutant("depth_keeps_the_future_out")
class HaltsTogether(Universal):
    """A token halts by the mean over the text, later tokens included."""

    def odds(self, hidden: Tensor) -> Tensor:
        odds = super().odds(hidden)
        return odds.mean(1, keepdim=True).expand_as(odds)


@mutant("depth_streams")
class ForgetsThePast(Fixed):
    """Adds the mean of the tokens that came before, of this call alone."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        looped = super().forward(blocks, x, threads, **given)
        means = looped.hidden.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return looped._replace(hidden=looped.hidden + means)


@mutant("depth_reads_no_padding")
class ForgetsTheMask(Fixed):
    """Runs the blocks as if all were real."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        return super().forward(blocks, x, threads, **{**given, "key_mask": None})
