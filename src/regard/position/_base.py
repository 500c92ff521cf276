"""The template of position schemes: three hooks, each optional."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.core.bias import ScoreBias
from regard.core.info import Heads
from regard.features.waves import sinusoids

Layout = Literal["interleaved", "halves"]


class Position(nn.Module):
    """Tells a layer where things are. Positions are slots: integers that count every token ever given.

    Args:
        heads: the heads that the layer serves.
        dim: width of the hidden states.
    """

    title: ClassVar[str]
    absolute: ClassVar[bool] = False
    """acts on hidden states through `embed`; a model applies it once, to its embeddings"""
    transforms: ClassVar[bool] = False
    """changes queries and keys, so it needs a mechanism that reads both"""
    biased: ClassVar[bool] = False
    """gives a score bias, so it needs a mechanism that supports one"""
    sized: ClassVar[bool] = False
    """has vectors for `max_length` positions and no more"""
    per_layer: bool = False
    """of an absolute scheme: a model gives every block one of its own, added to what enters the block"""

    def __init__(self, heads: Heads, dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.dim = dim

    def embed(
        self, x: Float[Tensor, "batch length dim"], positions: Int[Tensor, "*batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """Hidden states with their absolute positions added."""
        del positions
        return x

    def slots(self, start: int, stop: int, device: torch.device) -> Int[Tensor, " slots"]:
        """The slots start, start + 1, ..., stop - 1. Never modified, so that a scheme may give one tensor twice."""
        return torch.arange(start, stop, device=device)

    def transform(
        self,
        q: Float[Tensor, "batch heads queries dim"],
        k: Float[Tensor, "batch kv_heads keys dim"],
        query_positions: Int[Tensor, "*rows queries"],
        key_positions: Int[Tensor, "*rows keys"],
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys changed so that their products know the positions: (length,), or (batch, 1, length)."""
        del query_positions, key_positions
        return q, k

    def bias(self, q: Float[Tensor, "batch heads queries dim"], low: int, high: int) -> ScoreBias | None:
        """Logits for the distances high, high - 1, ..., low, from the untransformed queries."""
        del q, low, high
        return None


def sinusoidal_code(
    positions: Int[Tensor, "*positions"], width: int, *, base: float = 10000.0, layout: Layout = "interleaved"
) -> Float[Tensor, "*positions width"]:
    """The code of each position: sin and cos in turn, or all sines before all cosines."""
    sin, cos = sinusoids(positions, width, base)
    code = torch.cat([sin, cos], -1) if layout == "halves" else torch.stack([sin, cos], -1).flatten(-2)
    return code[..., :width]
