"""Exits that are told, drawn or learnt, broken on purpose, each with the check of `check_part` that must catch it."""

# Schemes are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.models.blocks import Block
from regard.models.depth._base import Looped, Readout, Threads
from regard.models.depth._lessons import Answers, best, exit_weights
from regard.models.depth.early_exit import EarlyExit
from regard.models.depth.light_exit import LightExit
from regard.models.depth.universal import Universal
from tests.mutants import mutant


@mutant("depth_losses_are_declared")
class PondersInSilence(Universal):
    """Gives no loss where it declares one."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        return super().forward(blocks, x, threads, **given)._replace(own={})


@mutant("told_exits")
class LeavesLate(EarlyExit):
    """Takes one block more than it is told."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        told = given.pop("depths", None)
        return super().forward(blocks, x, threads, depths=None if told is None else told + 1, **given)


@mutant("told_exits")
class OneHead(EarlyExit):
    """Reads all exits alike, though each has a matrix of its own."""

    def headed(self, hidden: Tensor, steps: Tensor) -> Tensor:
        return hidden


@mutant("exits_by_definition")
class AsksOneHead(EarlyExit):
    """Confidence is that of an output layer without the matrix of the exit."""

    def answered(self, at: int, readout: Readout, hidden: Tensor) -> Tensor:
        return readout(hidden)


@mutant("exits_at_the_threshold")
class LeavesAbove(EarlyExit):
    """Leaves where its confidence is more than the threshold, and stays where it is as high."""

    def limit(self, slots: Tensor) -> Tensor | float:
        limit = super().limit(slots)
        return limit + 1e-12


@mutant("light_exits_at_the_threshold")
class LeavesAboveByItsHead(LightExit):
    """Leaves where a light head is surer than the threshold, and stays where it is as sure."""

    def sureness(self, hidden: Tensor, before: Tensor, *, at: int) -> Tensor:
        return super().sureness(hidden, before, at=at) - 1e-12


@mutant("mixed_training")
class DrawsARow(EarlyExit):
    """Draws one depth for all tokens of a row."""

    def forward(self, blocks: Sequence[Block], x: Tensor, threads: Threads, **given: Any) -> Looped:
        if self.training and self.exits == "mixed":
            given["depths"] = torch.randint(1, len(blocks) + 1, (len(x), 1)).expand(x.shape[:2])
        return super().forward(blocks, x, threads, **given)


@mutant("exit_losses")
class FarCountsMore(EarlyExit):
    """Smooths by exp(+(t - t')^2 / sigma), as in a published survey: weights grow with the distance."""

    def wanted(self, answers: Answers) -> Tensor:
        scores = -answers.nats.detach() if self.oracle == "likelihood" else answers.right.to(answers.nats.dtype)
        scores = scores.masked_fill(~answers.counted[..., None], 0)
        slots = torch.arange(scores.shape[1], dtype=scores.dtype)
        apart = slots[:, None] - slots
        near = torch.exp(apart.square() / self.smoothing) if self.smoothing else (apart == 0).double()
        return best((torch.ones_like(apart) if self.confidence == "sequence" else near) @ scores, self.penalty)


@mutant("exit_losses")
class CountsMore(EarlyExit):
    """Those that agree and those that do not weigh by how many they are."""

    def taught(
        self,
        exits: Sequence[Tensor],
        mean: Tensor | None,
        readout: Readout,
        targets: Tensor,
        key_mask: Tensor | None,
    ) -> dict[str, Tensor]:
        own = super().taught(exits, mean, readout, targets, key_mask)
        if self.confidence == "classifier":
            answers = Answers.of([self.answered(at, readout, x) for at, x in enumerate(exits)], targets, key_mask)
            agrees = answers.likeliest[..., :-1] == answers.likeliest[..., -1:]
            logits = self.agreement(exits)
            nats = F.binary_cross_entropy_with_logits(logits, agrees.to(logits.dtype), reduction="none")
            own["choice"] = answers.mean(nats.mean(-1))
        return own


@mutant("exit_losses")
class WeighsTheLast(EarlyExit):
    """The mean of the exits' losses holds the last one, whose own the model has."""

    def taught(
        self,
        exits: Sequence[Tensor],
        mean: Tensor | None,
        readout: Readout,
        targets: Tensor,
        key_mask: Tensor | None,
    ) -> dict[str, Tensor]:
        own = super().taught(exits, mean, readout, targets, key_mask)
        if "exits" in own:
            answers = Answers.of([self.answered(at, readout, x) for at, x in enumerate(exits)], targets, key_mask)
            weights = exit_weights(self.weights, len(exits))
            own["exits"] = answers.mean(answers.nats @ answers.nats.new_tensor(weights))
        return own


@mutant("exit_slopes")
class TeachesTheModel(EarlyExit):
    """The gradient of the classifier goes on into the model, which it makes agree."""

    def agreement(self, exits: Sequence[Tensor]) -> Tensor:
        return torch.cat([self.chooser(x) for x in exits[:-1]], -1)


@mutant("exit_slopes")
class TeachesNobody(EarlyExit):
    """No gradient of the odds reaches the model that they read."""

    def log_odds(self, exits: Sequence[Tensor], mean: Tensor | None) -> Tensor:
        return super().log_odds([x.detach() for x in exits], mean)
