"""Synthesized attention whose row of weights is an outer product of two short rows, written by the query's token."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.synthesized import Logits, Synthesizer
from regard.core.attention import accumulation_dtype, generator
from regard.core.info import Info, Supports
from regard.core.options import weight


@final
class FactorizedDenseSynthesizer(Synthesizer):
    """The dense Synthesizer with fewer columns: slot j = p s + r, the r-th of block p, gets B_ij = a_i[p] b_i[r].

    a_i = W_a h_i + c_a has a number for each block of s slots, b_i = W_b h_i + c_b one for each slot of a block, and
    h_i = relu(W1 q_i + b1): about 2 sqrt(max_length) columns in place of max_length. `first`, `first_bias`, `blocks`,
    `blocks_bias`, `within` and `within_bias` are W1, b1, W_a, c_a, W_b and c_b; every query head has its own.

    The paper tiles both rows to max_length and multiplies; how is not settled. Were both repeated, each with its own
    length as period, slots would share logits where the lengths have a common divisor; here every slot has a product
    of its own. One layer W1 serves both, since the paper counts d^2 + d (k1 + k2) weights for k1 k2 = max_length.

    Cost: O(length^2 value) time, O(length^2) memory. State: every value.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads
        >>> mechanism = FactorizedDenseSynthesizer(Heads(count=1, key_dim=8, max_length=60), block_size=10)
        >>> mechanism.blocks.shape[1], mechanism.within.shape[1]  # in place of 60 columns
        (6, 10)

    Source: Tay et al. 2020, section 3.3.
    """

    default_info = Info(
        title="Factorized Dense Synthesizer",
        source="Tay et al. 2020, section 3.3",
        supports=Supports.all(but=("cross", "bias", "marks")),
        reads="qv",
        memory=2,
        state="length",
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"hidden": 5, "block_size": 4})

    hidden: Annotated[int, Ge(1)] | None = None
    """width of the network; None: key_dim"""
    block_size: Annotated[int, Ge(1)] | None = None
    """s, in slots; None: the square root of max_length, rounded up"""
    first: nn.Parameter = weight()
    first_bias: nn.Parameter = weight()
    blocks: nn.Parameter = weight()
    blocks_bias: nn.Parameter = weight()
    within: nn.Parameter = weight()
    within_bias: nn.Parameter = weight()

    def setup(self) -> None:
        heads = self.heads
        assert heads.max_length is not None
        width = heads.key_dim if self.hidden is None else self.hidden
        size = math.isqrt(heads.max_length - 1) + 1 if self.block_size is None else self.block_size
        draw = generator(heads.seed, "factorized_dense_synthesizer")

        def layer(rows: int, columns: int) -> tuple[nn.Parameter, nn.Parameter]:
            normal = torch.randn(heads.count, rows, columns, generator=draw) * columns**-0.5
            return nn.Parameter(normal), nn.Parameter(torch.zeros(heads.count, rows))

        self.first, self.first_bias = layer(width, heads.query_width)
        self.blocks, self.blocks_bias = layer(-(-heads.max_length // size), width)
        self.within, self.within_bias = layer(size, width)

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """The outer product, cut to the slots so far; in float32 at least, like any product of rows and columns."""
        del k, first
        wide = accumulation_dtype(q.dtype)
        weights = (self.first, self.first_bias, self.blocks, self.blocks_bias, self.within, self.within_bias)
        w1, b1, wa, ca, wb, cb = (x.to(wide) for x in weights)
        inner = torch.relu(q.to(wide) @ w1.mT + b1[:, None])
        blocks, within = inner @ wa.mT + ca[:, None], inner @ wb.mT + cb[:, None]
        return Logits(table=(blocks[..., None] * within[..., None, :]).flatten(-2)[..., :slots])

    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """One product for each slot, then side by side."""
        del first
        inner = (torch.einsum("bhid,hed->bhie", q, self.first) + self.first_bias[:, None]).clamp(min=0)
        a = torch.einsum("bhie,hpe->bhip", inner, self.blocks) + self.blocks_bias[:, None]
        b = torch.einsum("bhie,hre->bhir", inner, self.within) + self.within_bias[:, None]
        size, slots = b.shape[-1], k.shape[2]
        products = [a[..., j // size] * b[..., j % size] for j in range(slots)]
        return torch.stack(products, -1) if products else q.new_zeros(*q.shape[:3], 0)
