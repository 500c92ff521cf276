"""Early exits dominate a fixed depth at equal operations.

Claim: A decoder that decides for each token after how many blocks it answers predicts better than one of a fixed depth
that costs as much.
Source: Elbayad et al. 2020, section 4; Schuster et al. 2022, section 6
Control: Depth matters: one block is worse than all of them. Who decides matters, and can be seen to: exits of the same
decoder that know the answers beat fixed exits of it at equal operations, and exits that are dealt out at random, in the
shares of those that decide, do not. Every training is over.
Measured: Bits per letter of held-out addresses by floating-point operations of a token when it generates, counted
without a clock, with what decides and with the keys of skipped blocks. The decoders of a fixed depth are trained alike,
each by itself; between two of them lies the line that a mixture of both reaches. Beside the claim the fixed exits of
the decoder itself.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from evidence.claims._letters import LETTERS, samples, with_exits
from evidence.claims._plateau import FINISHED, change
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.depth_costs import token_operations
from regard_lab.benchmark.exits import leaving_at
from regard_lab.benchmark.fitting import averages
from regard_lab.training.batches import Batch

Points = list[tuple[float, float]]
"""(operations of a token, bits of a letter)"""


class ExitsAgainstFixedDepth(Claim):
    controls = (
        Control("depth", "1 if all blocks beat one", 1.0, tolerance=0.0, small=False),
        Control("oracle", "1 if exits that know the answers win", 1.0, tolerance=0.0, small=False),
        Control("random", "1 if exits dealt out at random do not win", 1.0, tolerance=0.0, small=False),
        FINISHED,
    )
    findings = (
        Finding("worst", "bits, exits - fixed depth, worst threshold", at_most=0.0),
        Finding("mean", "bits, exits - fixed depth, mean of thresholds", at_most=0.0, states=False),
        Finding("itself", "bits, exits - own fixed exits, mean of thresholds", at_most=0.0, states=False),
        Finding("all", "bits, all blocks: trained with exits - without", at_most=0.0, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("bits", "Held-out text", "operations of a token", "bits per letter"),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    exits: str = "early_exit(confidence=softmax, exits=aligned)"
    thresholds: tuple[float, ...] = setting((0.8, 0.6, 0.4, 0.25, 0.1), tiny=(0.5, 0.1))
    dim: int = setting(32, tiny=16)
    layers: int = setting(4, tiny=3)
    steps: int = setting(600, tiny=20)
    batch: int = setting(16, tiny=4)
    length: int = 32
    rows: int = setting(300, tiny=20)
    """of held-out text"""
    learning_rate: float = 1e-2
    price: float = 0.05
    """nats that a block more costs the exits that know the answers"""

    def observe(self, seed: int) -> Observation:
        new = samples("valid", self.rows, self.length, generator(seed, "valid"))
        fixed: Points = []
        losses = {}
        for layers in range(1, self.layers + 1):
            model, losses[f"{layers} blocks"] = self.learned("fixed", layers, seed)
            fixed.append((self.operations(model, new)[1][0], self.bits(model, new)[0]))
        model, losses["exits"] = self.learned(self.exits, self.layers, seed)
        deciding, told = self.operations(model, new)
        points, own, dealt = self.by_threshold(model, new, seed, deciding=deciding, told=told)
        oracle = self.knowing(model, new, told)
        values = {
            "worst": max(above(points, fixed)),
            "mean": float(np.mean(above(points, fixed))),
            "itself": float(np.mean(above(points, own))),
            "all": own[-1][1] - fixed[-1][1],
            "depth": float(fixed[-1][1] < fixed[0][1] and own[-1][1] < own[0][1]),
            "oracle": float(above([oracle], own)[0] < 0),
            "random": float(np.mean(above(dealt, own)) >= 0),
            "unfinished": max(change(nats) for nats in losses.values()),
        }
        lines = {"exits": points, "fixed depth": fixed, "own fixed exits": own, "at random": dealt, "known": [oracle]}
        curves = {
            "bits": {name: ([x for x, _ in line], [y for _, y in line]) for name, line in lines.items()},
            "loss": {name: averages(nats) for name, nats in losses.items()},
        }
        return Observation(values, curves)

    def learned(self, depth: str, layers: int, seed: int) -> tuple[LanguageModel, list[float]]:
        """A decoder, and the nats of its last exit in every step of its training."""
        model = decoder(self, LETTERS, seed, heads=2, layers=layers, depth=depth, max_length=self.length)
        draw = generator(seed, "train")
        training = {"steps": self.steps, "learning_rate": self.learning_rate, "last": 0.0}
        return model, with_exits(model, draw, batch=self.batch, length=self.length, **training)

    def operations(self, model: LanguageModel, new: Int[Tensor, "rows letters"]) -> tuple[list[int], list[int]]:
        """Of a token by the blocks that it takes, where it decides and where it is told."""
        return token_operations(model, Batch([0], new[:1, :-1], new[:1, 1:], None, [0], [0]))

    @torch.no_grad()
    def nats(
        self, model: LanguageModel, new: Int[Tensor, "rows letters"], depths: Int[Tensor, "rows length"] | None = None
    ) -> tuple[Float[Tensor, "rows length"], Int[Tensor, "rows length"] | None]:
        """Of every letter but the first; and the blocks that its token took."""
        got = model(new[:, :-1]) if depths is None else model(new[:, :-1], depths=depths)
        return cross_entropy(got.logits.mT, new[:, 1:], reduction="none"), got.steps

    def bits(
        self, model: LanguageModel, new: Int[Tensor, "rows letters"], depths: Int[Tensor, "rows length"] | None = None
    ) -> tuple[float, Int[Tensor, "rows length"] | None]:
        """The mean, and the blocks that tokens took."""
        nats, steps = self.nats(model, new, depths)
        return float(nats.mean()) / math.log(2), steps

    def by_threshold(
        self, model: LanguageModel, new: Int[Tensor, "rows letters"], seed: int, *, deciding: list[int], told: list[int]
    ) -> tuple[Points, Points, Points]:
        """Exits that decide, one after the other threshold; fixed ones; and as many of each dealt out at random."""
        points: Points = []
        dealt: Points = []
        draw = generator(seed, "dealt")
        for threshold in self.thresholds:
            with leaving_at(model, threshold):
                bits, steps = self.bits(model, new)
            assert steps is not None
            points.append((spent(steps, deciding), bits))
            anyhow = steps.flatten()[torch.randperm(steps.numel(), generator=draw)].view_as(steps)
            dealt.append((spent(anyhow, told), self.bits(model, new, anyhow)[0]))
        everywhere = [torch.full_like(new[:, 1:], blocks) for blocks in range(1, self.layers + 1)]
        own = [(float(cost), self.bits(model, new, depths)[0]) for cost, depths in zip(told, everywhere, strict=True)]
        return points, own, dealt

    def knowing(self, model: LanguageModel, new: Int[Tensor, "rows letters"], told: list[int]) -> tuple[float, float]:
        """Exits that know what each loses at every fixed one."""
        lost = [self.nats(model, new, torch.full_like(new[:, 1:], n))[0] for n in range(1, self.layers + 1)]
        prices = self.price * torch.arange(self.layers)
        depths = (torch.stack(lost, -1) + prices).argmin(-1) + 1
        return spent(depths, told), self.bits(model, new, depths)[0]


def spent(steps: Int[Tensor, "rows length"], costs: list[int]) -> float:
    """Mean operations of tokens that took so many blocks."""
    return float(torch.tensor(costs, dtype=torch.float64)[steps - 1].mean())


def above(points: Points, line: Points) -> list[float]:
    """How many bits each point lies above what lies on the line at as many operations; beyond its ends, at its end."""
    costs, bits = zip(*line, strict=True)
    return [y - float(np.interp(x, costs, bits)) for x, y in points]
