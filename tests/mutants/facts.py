"""Mutants whose algorithm is sound and whose facts are lies."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.core import Attended, Call
from regard.state import State, begin
from tests.mutants import claiming, mutant
from tests.mutants.toys import ToyCodes, ToyDense, ToyFeatures, ToyKernel, ToyProjection, ToyTable, ToyWindow, positions


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
        return super().attend(q, k, v, replace(call, bias=None))


@mutant("causality")
class OverclaimsCausal(ToyProjection):
    """Projects all positions, and says it is causal."""

    default_info = claiming(ToyProjection.default_info, {"causal": True})


@mutant("finite_differences")
class DeniesItsGradient(ToyDense):
    """Has the gradient of its queries, and is declared straight-through, so that no slope would be compared."""

    default_info = claiming(ToyDense.default_info, straight_through="q")


@mutant("parameter_gradients")
class DeniesItsSlope(ToyDense):
    """Says that it is a step function of the keys."""

    default_info = claiming(ToyDense.default_info, without_gradient="k")


@mutant("leak")
class DeniesTheLeak(ToyDense):
    """Is causal, and is declared to leak, so that no causality check would run."""

    default_info = claiming(ToyDense.default_info, {"state": False}, state="none", leaks=True)


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
class ModestAboutRows(ToyDense):
    """Is normalised, and says it is not, so that nobody checks it."""

    default_info = claiming(ToyDense.default_info, rows_sum_to_one=False)


@mutant("nonnegative")
class ClaimsNonnegative(ToyProjection):
    """Has negative weights, and says it has none."""

    default_info = claiming(ToyProjection.default_info, nonnegative=True)


@mutant("signed")
class ModestAboutSigns(ToyDense):
    """Has nonnegative weights, and says some are negative."""

    default_info = claiming(ToyDense.default_info, nonnegative=False)


@mutant("matrix")
class ClaimsNoOffset(ToyProjection):
    """Adds a constant, and says it is linear in the values."""

    default_info = claiming(ToyProjection.default_info, linear_in_value=True)


@mutant("linear_in_value")
class NormalisesValues(ToyDense):
    """Divides the values by their norm, and says it is linear in them."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v / v.norm(dim=-1, keepdim=True).clamp_min(1e-6), call)


@mutant("affine_in_value")
class ModestAboutLinearity(ToyDense):
    """Is linear in the values, and says it is only affine."""

    default_info = claiming(ToyDense.default_info, linear_in_value=False)


@mutant("nonlinear")
class DeniesAffinity(ToyDense):
    """Is linear in the values, and says it is not even affine, so that its matrix is never looked at."""

    default_info = claiming(ToyDense.default_info, linear_in_value=False, affine_in_value=False)


@mutant("permutation")
class ClaimsToIgnoreOrder(ToyWindow):
    """Sees a window, and says that positions do not matter."""

    default_info = claiming(ToyWindow.default_info, sees_content_only=True)


@mutant("order")
class ModestAboutOrder(ToyDense):
    """Sees content only, and says that positions matter."""

    default_info = claiming(ToyDense.default_info, sees_content_only=False)


@mutant("approximation")
class KnobWithoutEffect(ToyFeatures):
    """Uses eight random features however many are asked for, and says that more bring it closer to softmax."""

    def setup(self) -> None:
        super().setup()
        self.omega = self.omega[:, :8].repeat(1, -(-self.num_features // 8))[:, : self.num_features]


@mutant("approximation")
class ClaimsToApproximate(ToyKernel):
    """Is another kernel, and says it approaches softmax."""

    default_info = claiming(ToyKernel.default_info, approximates="softmax", knob="size")

    size: int = 4
    """of nothing"""


@mutant("cost")
class ClaimsLinearCost(ToyDense):
    """Makes every pair, and says its cost is linear."""

    default_info = claiming(ToyDense.default_info, time=1, memory=1)


@mutant("state_bytes")
class ClaimsConstantState(ToyDense):
    """Keeps every key, and says its state has a constant size."""

    default_info = claiming(ToyDense.default_info, state="constant")


@mutant("compilation_in_parts")
class ModestAboutGraphs(ToyDense):
    """Compiles as one graph, and says it does not."""

    default_info = claiming(ToyDense.default_info, compiles_whole=False)


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
