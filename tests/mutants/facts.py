"""Mutants whose facts are lies: the algorithm is not what they say."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.dense.sigmoid import Sigmoid
from regard.attention.kernel.linear import Linear
from regard.core.attention import Attended, Call
from regard.core.state import State, begin
from regard_lab.published.sigmoid_published import SigmoidPublished
from tests.mutants import claiming, mutant
from tests.mutants.toys import (
    ToyBranching,
    ToyCodes,
    ToyDense,
    ToyFeatures,
    ToyKernel,
    ToyMaximum,
    ToyProjection,
    ToyTable,
    ToyWindow,
    allowed_pairs,
    expanded,
    positions,
)


@mutant("facts")
class StateWithoutGrowth(ToyDense):
    """Supports a state, and says it has none."""

    default_info = claiming(ToyDense.default_info, state="none")


@mutant("facts")
class KnobWithoutTarget(ToyFeatures):
    """Has a knob, and approximates nothing."""

    default_info = claiming(ToyFeatures.default_info, approximates=None)


@mutant("refusals")
class UnderclaimsState(ToyDense):
    """Streams, and says it does not."""

    default_info = claiming(ToyDense.default_info, {"state": False}, state="none")

    def initial_state(self, batch: int, **like: Any) -> State:  # type: ignore[override]
        return begin(self.state_layout(), batch, **like)


@mutant("refusals")
class AcceptsUndeclaredBias(ToyDense):
    """Says it takes no bias, and drops one silently."""

    default_info = claiming(ToyDense.default_info, {"bias": False})

    def setup(self) -> None:
        super().setup()
        self.info = replace(self.info, supports=replace(self.info.supports, bias=True))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(bias=None))


@mutant("finite_differences")
class DeniesItsGradient(ToyDense):
    """Has the gradient of its queries, and is declared straight-through, so that no slope would be compared."""

    default_info = claiming(ToyDense.default_info, straight_through="q")


@mutant("parameter_gradients")
class DeniesItsSlope(ToyDense):
    """Says that it is a step function of the keys."""

    default_info = claiming(ToyDense.default_info, without_gradient="k")


@mutant("leak")
class DeniesTheLeak(SigmoidPublished):
    """Is causal and declared to leak, so that no causality check would run."""

    samples = ({},)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return Sigmoid(self.heads).average(q, k, v, call)


@mutant("reads")
class ReadsSecretly(ToyTable):
    """Says it does not read the keys, and does."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + 0.1 * k.mean(-1)[:, :, None]


@mutant("reads")
class ReadsNothing(ToyTable):
    """Says it reads the keys, and does not."""

    default_info = claiming(ToyTable.default_info, reads="qkv")


@mutant("left_padding")
class SecretlyAnchored(ToyWindow):
    """Sees blocks of absolute slots, and does not say so."""

    def near(self, pairs: Tensor, call: Call) -> Tensor:
        i, j = positions(pairs.shape[-2], pairs.shape[-1], call)
        return pairs & (i // 4 == j // 4)


@mutant("left_padding_refusal")
class AcceptsLeftPadding(ToyTable):
    """Has weights per slot, and serves shifted sequences with the wrong ones."""

    def setup(self) -> None:
        super().setup()
        self.info = replace(self.info, anchored=False)


@mutant("rows_free")
class ModestAboutRows(Linear):
    """Is normalised where it says it is not, so that nobody checks it."""

    samples = ({"normalise": False},)

    def setup(self) -> None:
        self.normalise = True
        super().setup()


@mutant("nonnegative")
class ClaimsNonnegative(ToyKernel):
    """Has signed features, and says that no weight is negative."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x) - 0.5


@mutant("signed")
class ModestAboutSigns(ToyProjection):
    """Projects with nonnegative weights, and says some are negative."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        with torch.no_grad():
            self.down.abs_()
        return super().attend(q, k, v, call)


@mutant("linear_in_value")
class NormalisesValues(ToyDense):
    """Divides the values by their norm, and says it is linear in them."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v / v.norm(dim=-1, keepdim=True).clamp_min(1e-6), call)


@mutant("affine_in_value")
class ModestAboutLinearity(ToyProjection):
    """Adds nothing, and says that it is only affine."""

    def setup(self) -> None:
        super().setup()
        del self.offset
        self.register_buffer("offset", torch.zeros(self.heads.value_width))


@mutant("nonlinear")
class DeniesAffinity(ToyMaximum):
    """Takes a mean, and says it is not even affine, so that its matrix is never looked at."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        pairs = allowed_pairs(q.shape[2], v.shape[2], call).to(v.dtype)
        return Attended(pairs @ expanded(v, q.shape[1]) / pairs.sum(-1, keepdim=True).clamp_min(1))


@mutant("permutation")
class ClaimsToIgnoreOrder(ToyDense):
    """Sees a window, and says that positions do not matter."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        i, j = positions(queries, keys, call)
        return super().allowed(queries, keys, call) & ((i - j).abs() <= 3)


@mutant("order")
class ModestAboutOrder(ToyWindow):
    """Sees content only, and says that positions matter."""

    def near(self, pairs: Tensor, call: Call) -> Tensor:
        return pairs


@mutant("approximation")
class KnobWithoutEffect(ToyFeatures):
    """Uses eight random features however many are asked for, and says that more bring it closer to softmax."""

    def setup(self) -> None:
        super().setup()
        self.omega = self.omega[:, :8].repeat(1, -(-self.num_features // 8))[:, : self.num_features]


@mutant("cost")
class ClaimsLinearCost(ToyDense):
    """Makes every pair, and says its cost is linear."""

    default_info = claiming(ToyDense.default_info, time=1, memory=1)


@mutant("state_bytes")
class ClaimsConstantState(ToyDense):
    """Keeps every key, and says its state has a constant size."""

    default_info = claiming(ToyDense.default_info, state="constant")


@mutant("compilation_in_parts")
class ModestAboutGraphs(ToyBranching):
    """Compiles as one graph, and says it does not."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return ToyDense.normalise(self, logits, pairs)


@mutant("losses")
class UndeclaredLoss(ToyCodes):
    """Returns a loss in training that it does not declare."""

    default_info = claiming(ToyCodes.default_info, losses={})


@mutant("determinism")
class SeedWithoutEffect(ToyFeatures):
    """Is declared to draw from the seed, and draws the same from every seed."""

    def setup(self) -> None:
        super().setup()
        self.omega = torch.linspace(-1, 1, self.omega.numel()).reshape(self.omega.shape)
