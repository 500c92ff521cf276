"""The slots that were given most so far, and the last ones."""

from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.memory.caches._base import CacheState, Eviction, newest


@final
class H2o(Eviction):
    """Keeps the newest slots, and of the others those whose weights add up to most since they were appended.

    Weights are summed over the queries of a head's group. No later query has a part in what is kept for an earlier one;
    published code ranks a prompt by the sums of all of its queries, and its budget is a share of the length.

    Source: Zhang et al. 2023, H2O: Heavy-Hitter Oracle, Algorithm 1.
    """

    title: ClassVar[str] = "heavy hitters"
    weighs: ClassVar[bool] = True

    recent: Annotated[int, Ge(1)] | None = None
    """newest slots that stay whatever they weigh; None: half of the budget, rounded up"""

    def worth(self, state: CacheState) -> Tensor:
        """What it was given so far."""
        kept = state.kept.view()
        recent = (self.budget + 1) // 2 if self.recent is None else self.recent
        return kept["weight"].double().masked_fill(newest(kept["slot"], recent), float("inf"))
