"""Synthesized attention whose weights no token moves: one matrix for every sequence."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.synthesized import Logits, Synthesizer
from regard.core.attention import generator
from regard.core.info import Info, Supports
from regard.core.options import weight


@final
class RandomSynthesizer(Synthesizer):
    """The logits are a matrix that is drawn at random and learned: o_i = sum_j softmax_j(R_ij) v_j.

    `matrix` is R, (heads, max_length, max_length). Row i and column j belong to slots i and j; neither queries nor keys
    are read, so every sequence of one length gets the same weights. R starts as N(0, 1): as far apart as the scaled
    products of normal queries and keys.

    Cost: O(length^2 value) time; O(length^2) memory, for weights that the whole batch shares. State: every value. Lost:
    every choice by content.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads, weights
        >>> one, other = torch.randn(2, 1, 1, 5, 8)
        >>> mechanism = RandomSynthesizer(Heads(count=1, key_dim=8, max_length=16))
        >>> torch.equal(weights(mechanism, one, one), weights(mechanism, other, other))
        True

    Source: Tay et al. 2020, section 3.2.
    """

    default_info = Info(
        title="Random Synthesizer",
        source="Tay et al. 2020, section 3.2",
        supports=Supports.all(but=("cross", "bias", "marks")),
        reads="v",
        memory=2,
        state="length",
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"trainable": False})

    trainable: bool = True
    """whether R is learned; else it stays as it was drawn (the paper's fixed form)"""
    matrix: Tensor = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A matrix that is not learned is a random feature."""
        return replace(cls.default_info, stochastic=not options["trainable"])

    def setup(self) -> None:
        heads = self.heads
        assert heads.max_length is not None
        size = heads.count, heads.max_length, heads.max_length
        matrix = torch.randn(size, generator=generator(heads.seed, "random_synthesizer"))
        if self.trainable:
            self.matrix = nn.Parameter(matrix)
        else:
            self.register_buffer("matrix", matrix)

    def redraw(self, generator: torch.Generator) -> None:
        """Another matrix, where it is not learned."""
        if not self.trainable:
            self.matrix.copy_(torch.randn(self.matrix.shape, generator=generator))

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """The rows of the queries' slots, cut to the slots so far."""
        del k
        return Logits(table=self.matrix[None, :, first : first + q.shape[2], :slots])

    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """R, row by row."""
        rows = [self.matrix[:, first + i, : k.shape[2]] for i in range(q.shape[2])]
        return torch.stack(rows, 1)[None] if rows else self.matrix[None, :, :0, : k.shape[2]]
