"""Text whose true probabilities are known, so that a model's loss has a floor."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.models import LanguageModel


class MarkovText:
    """p(x_t | all before) = P[x_{t-order}, ..., x_{t-1}, x_t], with rows softmax(sharpness * normal numbers).

    Args:
        order: symbols that the next one depends on.
        symbols: how many there are.
        sharpness: 0 makes all equally likely.
        draw: of the probabilities.
    """

    def __init__(self, order: int, symbols: int, *, sharpness: float = 2.0, draw: torch.Generator) -> None:
        self.order, self.symbols = order, symbols
        self.probability = torch.softmax(sharpness * torch.randn(symbols**order, symbols, generator=draw), -1)

    def sample(self, count: int, length: int, draw: torch.Generator) -> Int[Tensor, "count length"]:
        """New text; the first `order` symbols are uniform."""
        text = torch.randint(0, self.symbols, (count, length), generator=draw)
        context = self.context(text[:, : self.order])[:, -1]
        for at in range(self.order, length):
            new = torch.multinomial(self.probability[context], 1, generator=draw)[:, 0]
            text[:, at] = new
            context = (context * self.symbols + new) % self.symbols**self.order
        return text

    def context(self, text: Int[Tensor, "count length"]) -> Int[Tensor, "count contexts"]:
        """The number of the row of P that every run of `order` symbols selects."""
        powers = self.symbols ** torch.arange(self.order - 1, -1, -1)
        return (text.unfold(1, self.order, 1) * powers).sum(-1)

    def lost(self, model: LanguageModel, text: Int[Tensor, "count length"]) -> Float[Tensor, "count predicted"]:
        """-log of the probability that a model gives to each of these symbols."""
        logits = model(text[:, :-1]).logits[:, self.order - 1 :]
        return cross_entropy(logits.mT, text[:, self.order :], reduction="none")

    def nats(self, text: Int[Tensor, "count length"]) -> Float[Tensor, "count predicted"]:
        """-log p of every symbol after the first `order`: what the best possible model loses on this text."""
        rows = self.probability[self.context(text)[:, :-1]]
        return -rows.gather(-1, text[:, self.order :, None])[..., 0].log()
