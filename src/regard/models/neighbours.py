"""The tokens of neighbours in a datastore, mixed into the hidden states that the output layer reads (SPALM)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import InputError, ShapeError, UnsupportedError
from regard.core.precision import accumulation_dtype
from regard.layer import linear
from regard.models.config import ModelConfig


class NeighbourTokens(NamedTuple):
    """The neighbours of every position, as a search of a datastore gives them: numbers, through which no gradient goes.

    tokens: the token that came at each of them; -1: there is no such neighbour. distances: squared L2, of their keys.
    """

    tokens: Int[Tensor, "batch length k"]
    distances: Float[Tensor, "batch length k"]


class NeighbourGate(nn.Module):
    """z = (1 - g) m + g h with g = sigmoid(w . h) and m = sum_i p_i y_i.

    y_i is the embedding of the i-th neighbour's token, p = softmax_i(y_i . h); with `neighbour_temperature` T, the
    ablation, p = softmax_i(y_i . h - d_i / T): published without distances, which did not help. A position without
    neighbours has z = h.

    Args:
        config: of the decoder.

    Source: Yogatama, de Masson d'Autume & Kong 2021, section 2.3: h is h_t^R, y_i the embedding of the i-th neighbour.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.count, self.temperature = config.neighbours, config.neighbour_temperature
        self.vocab_size = config.vocab_size
        self.gate = linear(config.dim, 1, bias=False, draw=generator(config.seed, "neighbours"))

    def forward(
        self,
        hidden: Float[Tensor, "batch length dim"],
        table: Float[Tensor, "vocab dim"],
        neighbours: NeighbourTokens,
    ) -> Float[Tensor, "batch length dim"]:
        """z of every position.

        Args:
            hidden: what the output layer would read.
            table: embeddings of the tokens, which learn from what is mixed in.
            neighbours: of every position.
        """
        there = neighbours.tokens >= 0
        embedded = nn.functional.embedding(neighbours.tokens.clamp_min(0), table)
        wide = accumulation_dtype(hidden.dtype)  # squared distances leave float16
        logits = (embedded @ hidden[..., None])[..., 0].to(wide)
        if self.temperature is not None:
            far = neighbours.distances.masked_fill(~there, 0)
            logits = logits - far.to(wide) / self.temperature
        some = there.any(-1, keepdim=True)
        logits = logits.masked_fill(~there & some, float("-inf"))  # with none, any finite row: it is not used
        mean = (logits.softmax(-1).to(embedded.dtype)[..., None, :] @ embedded)[..., 0, :]
        own = self.gate(hidden).sigmoid()
        mixed = torch.lerp(mean.to(hidden.dtype), hidden, own.to(hidden.dtype))  # autocast gives products its own dtype
        return torch.where(some, mixed, hidden)


def given(
    mixture: NeighbourGate | None, neighbours: NeighbourTokens | None, tokens: Int[Tensor, "batch length"]
) -> NeighbourTokens | None:
    """The neighbours of these tokens, if they are what a model takes.

    Args:
        mixture: of the model; None: it takes none.
        neighbours: what is passed to it.
        tokens: that it reads.

    Raises:
        UnsupportedError: some for a model that mixes in none, or none for one that does. ShapeError: of other
            positions. InputError: a token out of range.
    """
    if mixture is None:
        if neighbours is not None:
            raise UnsupportedError("this model mixes in no neighbours; leave them out, or build it with neighbours=4")
        return None
    if neighbours is None:
        raise UnsupportedError(
            f"this model mixes in the tokens of {mixture.count} neighbours, and none are given; put a datastore beside "
            "it: regard_lab.retrieval.Spalm, or regard evaluate and regard generate, which take that of the run"
        )
    for name, x in neighbours._asdict().items():
        if x.ndim != 3 or x.shape[:2] != tokens.shape or not x.shape[2]:
            batch, length = tokens.shape
            raise ShapeError(f"{name} of neighbours must be ({batch}, {length}, k), got {tuple(x.shape)}")
    if not torch.compiler.is_compiling():
        ids = neighbours.tokens
        if ((ids < -1) | (ids >= mixture.vocab_size)).any():
            raise InputError(f"tokens of neighbours are from 0 to {mixture.vocab_size - 1}, or -1 for none")
    return neighbours
