"""Mutants of dense mechanisms: formulas that surveys and public code get almost right."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.dense.cosine import Cosine
from regard.attention.dense.quantized import Quantized
from regard.core.attention import Attended, Call
from tests.mutants import mutant
from tests.mutants.toys import ToyDense


@mutant("rows_sum_to_one")
class LosesConfidentRows(ToyDense):
    """Gives nothing to a query that chooses one key of several, as an inverse of a singular matrix does."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        weights = super().normalise(logits, pairs)
        return weights.masked_fill((weights.amax(-1, keepdim=True) > 1 - 1e-9) & (pairs.sum(-1, keepdim=True) > 1), 0)


@mutant("huge_vectors")
class DividesByInfinity(Cosine):
    """Takes the norms of float32 vectors in float32: long ones become 0."""

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1) * self.log_gain.exp()[:, None, None], F.normalize(k, dim=-1)


@mutant("replayed_choices")
class RoundsTowardsZero(Quantized):
    """Cuts off what a code cannot hold, so that every stored number is too small."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if call.state is not None:
            return super().attend(q, k, v, call)
        k, v = (torch.trunc(x / (u := x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127)) * u for x in (k, v))
        return self.average(q, k, v, call)


@mutant("state_splits")
class UnitsOfACall(Quantized):
    """The first half of a call's keys is a block, wherever the sequence was cut."""

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"units": "channel", "block_size": 4},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        half = k.shape[2] // 2
        unit = k[:, :, :half].detach().abs().amax(2, keepdim=True).clamp(min=1e-30) / 127 if half else 1.0
        return super().attend(q, torch.cat([torch.round(k[:, :, :half] / unit) * unit, k[:, :, half:]], 2), v, call)
