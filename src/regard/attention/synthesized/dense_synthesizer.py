"""Synthesized attention whose row of weights depends on the query's token alone."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.dense import reference_softmax
from regard.attention.synthesized import Synthesizer
from regard.bias import ScoreBias
from regard.core import generator
from regard.info import Heads, Info, Supports


@final
class DenseSynthesizer(Synthesizer):
    """A two-layer network writes each row of logits: B_i = W2 relu(W1 q_i + b1) + b2, one column per slot.

    `first`, `first_bias`, `second` and `second_bias` are W1, b1, W2 and b2; every query head has its own. No key is
    read: column j belongs to slot j, whatever is there.

    Cost: O(length^2 (hidden + value)) time, O(length) memory. State: every value.

    Args:
        heads: what to serve; `max_length` is required.
        hidden: width of the network; None: key_dim.

    Raises:
        ConfigError: no `max_length`.
        LimitError: more slots than `max_length`.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 5, 8)
        >>> DenseSynthesizer(Heads(count=2, key_dim=8, causal=True, max_length=16))(q, q, q).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Tay et al. 2020, section 3.1.
    """

    info = Info(
        title="Dense Synthesizer",
        source="Tay et al. 2020, section 3.1",
        supports=Supports(
            causal=True,
            bidirectional=True,
            key_mask=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        reads="qv",
        state="length",
        anchored=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"hidden": 5})

    def __init__(self, heads: Heads, *, hidden: int | None = None) -> None:
        super().__init__(heads, hidden=hidden)
        assert heads.max_length is not None
        self.hidden = hidden
        width = heads.key_dim if hidden is None else hidden
        draw = generator(heads.seed, "dense_synthesizer")

        def normal(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(heads.count, rows, columns, generator=draw) * columns**-0.5)

        self.first = normal(width, heads.query_width)
        self.first_bias = nn.Parameter(torch.zeros(heads.count, width))
        self.second = normal(heads.max_length, width)
        self.second_bias = nn.Parameter(torch.zeros(heads.count, heads.max_length))

    def factors(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """relu(W1 q + b1), and the rows of W2 and b2 of the slots so far."""
        inner = torch.relu(q @ self.first.mT + self.first_bias[:, None])
        return inner, self.second[:, :keys], self.second_bias[:, :keys]

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Every row of B, cut to the slots, then the softmax of each row."""
        del k, bias, marks
        inner = (torch.einsum("bhid,hed->bhie", q, self.first) + self.first_bias[:, None]).clamp(min=0)
        logits = torch.einsum("bhie,hje->bhij", inner, self.second) + self.second_bias[:, None]
        return reference_softmax(logits[..., : v.shape[2]], v, causal=self.heads.causal, key_mask=key_mask)
