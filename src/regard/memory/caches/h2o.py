"""The slots that were given most so far, and the last ones."""

from typing import ClassVar, final

from torch import Tensor

from regard.memory.caches._base import CacheState, Recent


@final
class H2o(Recent):
    """Keeps the newest slots, and of the others those whose weights add up to most since they were appended.

    Weights are summed over the queries of a head's group. No later query has a part in what is kept for an earlier one;
    published code ranks a prompt by the sums of all of its queries, and its budget is a share of the length.

    Source: Zhang et al. 2023, H2O: Heavy-Hitter Oracle, Algorithm 1.
    """

    title: ClassVar[str] = "heavy hitters"
    weighs: ClassVar[bool] = True

    def worth(self, state: CacheState) -> Tensor:
        """What it was given so far."""
        return state.kept.view()["weight"].double().masked_fill(self.staying(state), float("inf"))
