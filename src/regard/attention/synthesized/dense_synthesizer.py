"""Synthesized attention whose row of weights depends on the query's token alone."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from regard.attention.synthesized import Logits, Synthesizer
from regard.core.attention import generator
from regard.core.info import Info, Supports
from regard.core.options import weight


@final
class DenseSynthesizer(Synthesizer):
    """A two-layer network writes each row of logits: B_i = W2 relu(W1 q_i + b1) + b2, one column per slot.

    `first`, `first_bias`, `second` and `second_bias` are W1, b1, W2 and b2; every query head has its own. No key is
    read: column j belongs to slot j, whatever is there.

    Cost: O(length^2 (hidden + value)) time, O(length) memory. State: every value.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 1, 5, 8)
        >>> mechanism = DenseSynthesizer(Heads(count=1, key_dim=8, max_length=16))
        >>> torch.equal(mechanism(q, k, v).values, mechanism(q, -k, v).values)  # no key is read
        True

    Source: Tay et al. 2020, section 3.1.
    """

    default_info = Info(
        title="Dense Synthesizer",
        source="Tay et al. 2020, section 3.1",
        supports=Supports.all(but=("cross", "bias", "marks")),
        reads="qv",
        state="length",
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"hidden": 5})

    hidden: Annotated[int, Ge(1)] | None = None
    """width of the network; None: key_dim"""
    first: nn.Parameter = weight()
    first_bias: nn.Parameter = weight()
    second: nn.Parameter = weight()
    second_bias: nn.Parameter = weight()

    def setup(self) -> None:
        heads = self.heads
        assert heads.max_length is not None
        width = heads.key_dim if self.hidden is None else self.hidden
        draw = generator(heads.seed, "dense_synthesizer")

        def normal(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(heads.count, rows, columns, generator=draw) * columns**-0.5)

        self.first = normal(width, heads.query_width)
        self.first_bias = nn.Parameter(torch.zeros(heads.count, width))
        self.second = normal(heads.max_length, width)
        self.second_bias = nn.Parameter(torch.zeros(heads.count, heads.max_length))

    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """relu(W1 q + b1) against the rows of W2 of the slots so far; b2 is one more column of both."""
        del k, first
        inner = torch.relu(q.to(self.first.dtype) @ self.first.mT + self.first_bias[:, None])
        columns = torch.cat([self.second[:, :slots], self.second_bias[:, :slots, None]], -1)
        return Logits(F.pad(inner, (0, 1), value=1.0), columns[None].to(inner.dtype))

    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """Both layers, written out."""
        del first
        inner = (torch.einsum("bhid,hed->bhie", q, self.first) + self.first_bias[:, None]).clamp(min=0)
        every = torch.einsum("bhie,hje->bhij", inner, self.second) + self.second_bias[:, None]
        return every[..., : k.shape[2]]
