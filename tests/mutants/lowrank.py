"""Mutants of Synthesizers and low-rank attention: what a reading of the papers gets almost right."""

# Mechanisms are final, and their steps private; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false, reportPrivateUsage=false

import torch
from torch import Tensor

from regard.attention.lowrank.linformer import Linformer
from regard.attention.lowrank.nystrom import Nystrom
from regard.core.attention import Attended, Call
from tests.mutants import mutant


@mutant("reference")
class LandmarksOfNoToken(Nystrom):
    """Keeps landmarks to which no token belongs, as vectors of 0."""

    samples = ({"num_landmarks": 16},)

    def _landmarks(self, x: Tensor, real: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
        means, there = super()._landmarks(x, real, count)
        return means, None if there is None else torch.ones_like(there)


@mutant("right_padding")
class MaximaOfPadding(Linformer):
    """Lets the 0 of a hidden position stand for the largest number of its block."""

    samples = ({"rank": 4, "projection": "max"},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(key_mask=None))
