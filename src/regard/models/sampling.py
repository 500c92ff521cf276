"""From logits to token ids: temperature, top-k, top-p."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.errors import ConfigError, NumericsError
from regard.core.types_of import typed


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen: softmax(logits / temperature), cut to the top k, then to the smallest set of mass top_p.

    Args:
        temperature: 0: always the most likely token.
        top_k: keep this many tokens; None: all.
        top_p: of those, keep the most likely ones whose probabilities first reach this sum; None: all.

    Raises:
        ConfigError: a value out of range.

    Example:
        >>> Sampling(top_k=1).pick(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([0.99]))
        tensor([1])

    Source: top-k: Fan et al. 2018, section 5.4; top-p: Holtzman et al. 2020, section 3.1.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @typed
    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be at least 0 (0: greedy), got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], got {self.top_p}")

    def pick(self, logits: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """One token id per row, by inverting the cumulative distribution at `uniforms` in [0, 1).

        The numbers come from outside, one generator per row, so that no row depends on its neighbours.

        Raises:
            NumericsError: logits that are not finite.
        """
        highest, best = logits.max(-1)
        if not torch.isfinite(highest).all():
            raise NumericsError("the model's logits are not finite, so there is nothing to sample from: it diverged")
        if self.temperature == 0:
            return best.cpu()
        shifted = (logits - highest[:, None]).cpu().double() / self.temperature
        if self.top_k is None and self.top_p is None:
            return _invert(shifted.softmax(-1), uniforms)
        ordered, ids = shifted.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        if self.top_k is not None:
            mass[:, self.top_k :] = 0
        if self.top_p is not None:
            mass = mass / mass.sum(-1, keepdim=True)
            mass = mass * (mass.cumsum(-1) - mass < self.top_p)
        return ids.gather(-1, _invert(mass, uniforms)[:, None])[:, 0]


def _invert(mass: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The first place in each row where the running sum of `mass` exceeds uniform * total."""
    reached = mass.cumsum(-1)
    # A double below 1 is at most 1 - 2^-53, so its product with the total rounds to less than the total.
    return torch.searchsorted(reached, uniforms.double()[:, None] * reached[:, -1:], right=True)[:, 0]
