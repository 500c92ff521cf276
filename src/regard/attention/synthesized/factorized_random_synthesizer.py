"""Synthesized attention by a learned matrix of low rank, which no token moves."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.synthesized import Logits, Synthesizer
from regard.core.attention import generator
from regard.core.info import Info, Supports
from regard.core.options import weight


@final
class FactorizedRandomSynthesizer(Synthesizer):
    """The random Synthesizer with a matrix of low rank: o_i = sum_j softmax_j(R1_i . R2_j) v_j.

    `first` and `second` are R1 and R2, (heads, max_length, rank): 2 max_length rank numbers in place of max_length^2.
    They start so that R1 R2^T has variance 1. Neither queries nor keys are read.

    Cost: O(length^2 (rank + value)) time, O(length) memory. State: every value.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads
        >>> mechanism = FactorizedRandomSynthesizer(Heads(count=2, key_dim=8, max_length=100), rank=3)
        >>> sum(parameter.numel() for parameter in mechanism.parameters())  # for each head 2 * 100 * 3
        1200

    Source: Tay et al. 2020, section 3.3 (k = 8).
    """

    default_info = Info(
        title="Factorized Random Synthesizer",
        source="Tay et al. 2020, section 3.3",
        supports=Supports.all(but=("cross", "bias", "marks")),
        reads="v",
        state="length",
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"rank": 3})

    rank: Annotated[int, Ge(1)] = 8
    """of the matrix; the paper's k"""
    first: nn.Parameter = weight()
    second: nn.Parameter = weight()

    def setup(self) -> None:
        heads = self.heads
        assert heads.max_length is not None
        draw = generator(heads.seed, "factorized_random_synthesizer")
        size = heads.count, heads.max_length, self.rank
        self.first, self.second = (nn.Parameter(torch.randn(size, generator=draw) * self.rank**-0.25) for _ in range(2))

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """The rows of R1 of the queries' slots, and those of R2 of the slots so far."""
        del k
        return Logits(self.first[None, :, first : first + q.shape[2]], self.second[None, :, :slots])

    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """R1 R2^T whole, then its part."""
        whole = torch.einsum("hir,hjr->hij", self.first, self.second)
        return whole[None, :, first : first + q.shape[2], : k.shape[2]]
