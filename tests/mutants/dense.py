"""Mutants of dense mechanisms: formulas that surveys and public code get almost right."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.dense import Dense, distance_aware, shaw
from regard.attention.dense.cosine import Cosine
from regard.attention.dense.distance_aware import DistanceAware
from regard.attention.dense.entropy_scaled import EntropyScaled, ratio
from regard.attention.dense.gaussian import Gaussian, square_distance
from regard.attention.dense.graph import Graph
from regard.attention.dense.quantized import Quantized
from regard.attention.dense.relu_squared import ReluSquared
from regard.attention.dense.shaw import Shaw
from regard.attention.dense.sigmoid import Sigmoid
from regard.core.attention import Attended, Call
from regard.engines.dense import Blocks, Rule, publish, softmax, visible_count
from regard_lab.published.relu_squared_published import ReluSquaredPublished
from regard_lab.published.sigmoid_published import SigmoidPublished
from tests.mutants import mutant
from tests.mutants.toys import ToyDense


@mutant("rows_sum_to_one")
class RootOutsideTheExponential(ToyDense):
    """exp(q.k) / (sqrt(d) sum exp(q.k)), as a survey prints it: rows sum to 1/sqrt(d)."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().normalise(logits, pairs) * self.heads.key_dim**-0.5


@mutant("rows_sum_to_one")
class LosesConfidentRows(ToyDense):
    """Gives nothing to a query that chooses one key of several, as an inverse of a singular matrix does."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        weights = super().normalise(logits, pairs)
        return weights.masked_fill((weights.amax(-1, keepdim=True) > 1 - 1e-9) & (pairs.sum(-1, keepdim=True) > 1), 0)


@mutant("rows_sum_to_one")
class RatioOutsideTheExponential(EntropyScaled):
    """Scales the weights with the logarithm of the number of keys, not the logits."""

    def setup(self) -> None:
        super().setup()
        factor = self.heads.key_dim**-0.5
        self.rule = publish(
            f"mutant ratio outside({factor!r})",
            Rule(lambda q, k: q @ k.mT * factor, lambda logits: softmax(logits) * ratio(visible_count(logits), 512, 1)),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return Dense.average(self, q, k, v, call)


@mutant("huge_vectors")
class DividesByInfinity(Cosine):
    """Takes the norms of float32 vectors in float32: long ones become 0."""

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1) * self.log_gain.exp()[:, None, None], F.normalize(k, dim=-1)


@mutant("reference")
class CountsEveryKey(EntropyScaled):
    """Takes the length of the sequence for the number of keys that a query sees."""

    def counts(self, q: Tensor, k: Tensor, call: Call) -> Tensor:
        del q, call
        return torch.full((1, 1), k.shape[2])


@mutant("reference")
class HalfOutsideTheExponential(Gaussian):
    """exp(-u^2) / 2 for exp(-u^2 / 2): the half cancels, and the kernel is narrower."""

    def setup(self) -> None:
        super().setup()
        rule = Rule(lambda q, k, distances: -square_distance(q, k).to(q.dtype), softmax, relative=True)
        self.rule = publish("mutant half outside", rule)


@mutant("reference")
class ForgetsTheNormOfKeys(Gaussian):
    """softmax(q.k) for a Gaussian kernel: right only where all keys have one norm."""

    def setup(self) -> None:
        super().setup()
        self.rule = publish("mutant no norm", Rule(lambda q, k, distances: q @ k.mT, softmax, relative=True))


@mutant("rows_sum_to_one")
class DistanceOutsideTheSoftmax(DistanceAware):
    """Multiplies the weights by the function of the distance, not the logits."""

    def setup(self) -> None:
        super().setup()

        def score(q: Tensor, k: Tensor, distances: Tensor, *weights: Tensor) -> Tensor:
            del distances, weights
            return torch.relu(q @ k.mT) * q.shape[-1] ** -0.5

        def average(p: Tensor, v: Tensor, distances: Tensor, slope: Tensor, ceiling: Tensor) -> Tensor:
            beta = ceiling[:, None, None]
            factor = torch.exp(F.softplus(beta) - F.softplus(beta - slope[:, None, None] * distances.abs()))
            return (p * factor) @ v

        self.rule = publish("mutant distance outside", Rule(score, softmax, relative=True, average=average))


@mutant("reference")
class DistanceOfSignedLogits(DistanceAware):
    """Leaves out the relu: where nothing matches, far keys are pushed away."""

    def setup(self) -> None:
        super().setup()

        def score(q: Tensor, k: Tensor, distances: Tensor, slope: Tensor, ceiling: Tensor) -> Tensor:
            alone = torch.ones_like(q[:1, :1, :1, :1])
            factor = distance_aware.score(alone, alone, distances, slope, ceiling)
            return q @ k.mT * factor * q.shape[-1] ** -0.5

        self.rule = publish("mutant signed logits", Rule(score, softmax, relative=True))


@mutant("reference")
class WithoutTheValueTable(Shaw):
    """Adds relative positions to the keys alone."""

    def setup(self) -> None:
        super().setup()
        self.rule = publish("mutant without the value table", Rule(shaw.score, softmax, relative=True))


@mutant("reference")
class ReadsTablesBackwards(Shaw):
    """Gives the past the rows of the future."""

    def setup(self) -> None:
        super().setup()

        def score(q: Tensor, k: Tensor, distances: Tensor, *tables: Tensor) -> Tensor:
            return shaw.score(q, k, -distances, *tables)

        def average(p: Tensor, v: Tensor, distances: Tensor, *tables: Tensor) -> Tensor:
            return shaw.average(p, v, -distances, *tables)

        self.rule = publish("mutant tables backwards", Rule(score, softmax, relative=True, average=average))


@mutant("reference")
class KinksBeforeTheSum(Graph):
    """LeakyReLU of each half, then the sum: the query's half is the same for all keys and has no effect."""

    def setup(self) -> None:
        super().setup()
        rule = Rule(lambda q, k: F.leaky_relu(q, 0.2) + F.leaky_relu(k.mT, 0.2), softmax)
        self.rule = publish("mutant kinks before the sum", rule)


@mutant("reference")
class DividesByTheSquaredNorm(Cosine):
    """q.k / |q|^2: a projection onto the query."""

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        unit, _ = super().project(q, k)
        return unit / q.norm(dim=-1, keepdim=True).clamp(min=1e-6), k


@mutant("causality_of_length")
class BiasOfTheWholeCall(Sigmoid):
    """b = -log of the length of the call, as published, in the mechanism that is causal."""

    samples = ({},)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return SigmoidPublished(self.heads).average(q, k, v, call)


@mutant("causality_of_length")
class DividesByTheWholeCall(ReluSquared):
    """Divides by the length of the call, as public code does, in the mechanism that is causal."""

    samples = ({},)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return ReluSquaredPublished(self.heads).average(q, k, v, call)


@mutant("replayed_choices")
class RoundsTowardsZero(Quantized):
    """Cuts off what a code cannot hold, so that every stored number is too small."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if call.state is not None:
            return super().attend(q, k, v, call)
        k, v = (torch.trunc(x / (u := x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127)) * u for x in (k, v))
        return self.average(q, k, v, call)


@mutant("state_splits")
class OneUnitForAll(Quantized):
    """One unit for all keys of a call: a token's rounding depends on the tokens beside it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        unit = k.detach().abs().amax((2, 3), keepdim=True).clamp(min=1e-30) / 127
        return super().attend(q, torch.round(k / unit) * unit if k.shape[2] else k, v, call)


@mutant("causality")
class RoundsItsOwnBlock(Quantized):
    """Units by channel for the block of the query too: they look at the slots behind it."""

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"units": "channel", "block_size": 4},)

    def average_blocks(self, q: Tensor, blocks: Blocks, call: Call) -> Attended:
        return self.average(q, *blocks.known(blocks.coarse[0].shape[2]), call)


@mutant("state_splits")
class UnitsOfACall(Quantized):
    """The first half of a call's keys is a block, wherever the sequence was cut."""

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"units": "channel", "block_size": 4},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        half = k.shape[2] // 2
        unit = k[:, :, :half].detach().abs().amax(2, keepdim=True).clamp(min=1e-30) / 127 if half else 1.0
        return super().attend(q, torch.cat([torch.round(k[:, :, :half] / unit) * unit, k[:, :, half:]], 2), v, call)
