"""Each block once, in order, until a small head of its own is sure of a token."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from regard.core.compiling import known_within
from regard.core.options import weight
from regard.core.precision import accumulation_dtype
from regard.features.norms import balanced
from regard.models.blocks import Block
from regard.models.depth._base import NOTHING, Looped, Threads, Tokens
from regard.models.depth._leaving import Leaving, few, taken


@final
class LightExit(Leaving):
    """h^n = block_n(h^{n-1}) until c^n = sigmoid(w_n . a^n + c_n) >= lambda, a^n = h^n / rms(h^n).

    A token that leaves after block n < N gives a^n + W_n a^n + b_n to the model's last norm, a guess at what the other
    blocks would have made of it; the blocks above still take their keys from h^n. W_n, b_n, w_n, c_n are fitted to a
    model whose own weights stay as they are (`regard_lab.training.exit_heads`); before that every confidence is 1/2
    and every guess is a^n.

    Cost: that of the blocks up to the last of a call to leave, the keys of the others, dim operations for a confidence
    and dim^2 for a token that leaves: no output layer is read to be sure. Weights: (layers - 1) (dim^2 + 2 dim + 1).

    Raises:
        ConfigError: reversible blocks, whose stream is two, or a memory.

    Source: confidence by a classifier: Schuster et al. 2022, section 3.2; a linear map for every layer: Belrose et al.
    2023 (tuned lens), section 3, there trained by gradient descent.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"threshold": 0.5, "whole": 0},
        {"threshold": 0.65},
    )

    threshold: Annotated[float, Ge(0), Le(1)] = 1.0
    """lambda: a token leaves once its confidence is as high; 1: none does"""
    whole: Annotated[int, Ge(0)] = 1
    """first tokens of a text that take every block: trained decoders attend much to the first one whatever it says, so
    that a state copied there may cost the rest more than it saves"""
    guess: nn.Parameter = weight()
    """W (layers - 1, dim, dim)"""
    guess_bias: nn.Parameter = weight()
    """b (layers - 1, dim)"""
    judge: nn.Parameter = weight()
    """w (layers - 1, dim)"""
    judge_bias: nn.Parameter = weight()
    """c (layers - 1)"""

    def setup(self) -> None:
        super().setup()
        exits, dim = self.config.layers - 1, self.config.dim
        self.guess = nn.Parameter(torch.zeros(exits, dim, dim))
        self.guess_bias = nn.Parameter(torch.zeros(exits, dim))
        self.judge = nn.Parameter(torch.zeros(exits, dim))
        self.judge_bias = nn.Parameter(torch.zeros(exits))

    @property
    def places(self) -> bool:
        """Whether it matters which tokens are the first."""
        return self.whole > 0

    @property
    def most(self) -> int:
        """Every block once."""
        return self.config.layers

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        tokens: Tokens = NOTHING,
    ) -> Looped:
        """Blocks until every token has left; in training every token takes every block."""
        first = threads.states[0]
        limit = self.limit(tokens.slots(x, 0 if first is None else first.length))

        def leaves(at: int, active: Tensor, x: Tensor, before: Tensor) -> Tensor:
            return self.goes_on(at, active, x, lambda _: self.sureness(x, before, at=at), limit)

        left = self.until_left(
            blocks,
            x,
            threads.states,
            leaves=None if self.training or (self.threshold == 1 and self.notes is None) else leaves,
            tokens=tokens,
        )
        hidden = self.guesses(left.hidden, left.steps)
        return Looped(hidden, left.states, list(threads.memories), left.losses, steps=left.steps)

    def limit(self, slots: Tensor) -> Tensor | float:
        """lambda of tokens in these slots; without end for the first ones of a text."""
        return torch.where(slots < self.whole, float("inf"), self.threshold) if self.whole else self.threshold

    def sureness(self, hidden: Tensor, before: Tensor, *, at: int) -> Tensor:
        """c^n (batch, length) of the hidden states after block `at`, from 0; those before it say nothing more."""
        del before
        wide = accumulation_dtype(hidden.dtype)
        return (of_unit_size(hidden) @ self.judge[at] + self.judge_bias[at]).to(wide).sigmoid()

    def guesses(self, hidden: Tensor, steps: Tensor) -> Tensor:
        """What the last norm reads of tokens that left with these states after so many blocks."""
        for count in taken(steps, self.config.layers - 1):
            here = steps == count
            if few(here):
                hidden = hidden.index_put((here,), self.guessed(hidden[here], count - 1).to(hidden.dtype))
            else:
                hidden = torch.where(here[..., None], self.guessed(hidden, count - 1).to(hidden.dtype), hidden)
        return hidden

    def guessed(self, hidden: Tensor, at: int) -> Tensor:
        """a + W a + b after block `at`, (..., dim)."""
        a = of_unit_size(hidden)
        return a + a @ self.guess[at].mT + self.guess_bias[at]


def of_unit_size(hidden: Tensor) -> Tensor:
    """h / rms(h), (..., dim), of float32 at least before it is rounded; 0 where h is, and so is its gradient there."""
    wide = hidden.to(accumulation_dtype(hidden.dtype))
    square, tiny = wide.square().mean(-1, keepdim=True), torch.finfo(wide.dtype).tiny
    if not known_within(square, tiny**0.5, tiny**-0.5):
        wide, _ = balanced(wide, raised=True)
        square = wide.square().mean(-1, keepdim=True)
    factor = square.masked_fill(square == 0, 1).rsqrt().masked_fill(square == 0, 0)
    return (wide * factor).to(hidden.dtype)
