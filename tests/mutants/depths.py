"""What runs the blocks of a model, broken on purpose, each with the check of `check_part` that must catch it."""

# Schemes are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.core.state import Summary
from regard.models.blocks import Block
from regard.models.depth._base import Looped, Readout, Threads
from regard.models.depth.early_exit import EarlyExit
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


@mutant("depth_counts_blocks")
class CountsSteps(Universal):
    """A step counts as one block, however many it runs."""

    @property
    def each(self) -> int:
        return 1


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
        return super().forward(blocks, x, threads, tokens=given.pop("tokens")._replace(key_mask=None), **given)


@mutant("no_exit_is_the_full_model")
class AddsWhatIsNew(EarlyExit):
    """Adds to active tokens what a block changed, which rounds."""

    def kept(self, active: Tensor, after: Tensor, before: Tensor) -> Tensor:
        return before + active[..., None] * (after - before)


@mutant("exits_by_definition")
class TrustsTheLikeliest(EarlyExit):
    """Confidence is the largest probability, not what it has before the next."""

    def sureness(self, hidden: Tensor, before: Tensor, readout: Readout | None, *, first: bool) -> Tensor:
        if readout is None or not self.reads_out:
            return super().sureness(hidden, before, readout, first=first)
        return readout(hidden).softmax(-1).amax(-1)


@mutant("exits_by_definition")
class GoesOnAbove(EarlyExit):
    """A token that has left is changed by the blocks that others still take."""

    def kept(self, active: Tensor, after: Tensor, before: Tensor) -> Tensor:
        return after


@mutant("exits_by_definition")
class HoldsTheThreshold(EarlyExit):
    """The threshold does not fall."""

    def limit(self, slots: Tensor) -> Tensor | float:
        return super().limit(torch.zeros_like(slots))


@mutant("depth_streams")
class CountsFromTheCall(EarlyExit):
    """The threshold falls along each call, not along the text."""

    def limit(self, slots: Tensor) -> Tensor | float:
        return super().limit(slots - slots.amin())


@mutant("depth_reads_nothing")
class CountsEmptyCalls(EarlyExit):
    """Counts a call of no tokens as one."""

    def means(self, x: Tensor, key_mask: Tensor | None, past: Summary | None) -> tuple[Tensor, Summary]:
        mean, after = super().means(x, key_mask, past)
        return mean, after if x.shape[1] else Summary({"sum": after["sum"], "count": after["count"] + 1}, after.length)


@mutant("depth_rounds_in_autocast")
class DropsSmallNumbers(Fixed):
    """Writes hidden states into whole numbers where products have fewer bits than they."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        looped = super().forward(blocks, x, threads, **given)
        short = torch.is_autocast_enabled("cpu")
        return looped._replace(hidden=looped.hidden.round()) if short else looped
