"""The block whose branches read the same hidden states."""

from typing import final

from torch import Tensor

from regard.models.blocks._base import OneStream


@final
class Parallel(OneStream):
    """Attention and MLP side by side, with one norm: x + attention(norm(x)) + mlp(norm(x)); post-norm: of the sum.

    Source: Wang and Komatsuzaki 2021 (GPT-J); Chowdhery et al. 2022 (PaLM), section 2.
    """

    def behind(self, x: Tensor, inner: Tensor, answer: Tensor, only: Tensor | None) -> Tensor:
        """The sum of both branches."""
        x = x + self.dropped(answer)
        if self.mlp is not None:
            x = x + self.dropped(self.mixed(inner, only))
        return x if self.place == "pre" else self.attention_norm(x)
