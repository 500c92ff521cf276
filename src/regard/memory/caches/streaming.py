"""The first slots and the last ones."""

from typing import Annotated, ClassVar, final

from annotated_types import Ge
from torch import Tensor

from regard.core.errors import ConfigError
from regard.memory.caches._base import CacheState, Eviction


@final
class Streaming(Eviction):
    """Keeps the first `sinks` slots, which attention falls back on, and the newest of the others.

    A query sees itself and budget slots, so budget - sinks + 1 recent ones. Keys keep their positions; the published
    code counts positions within the cache.

    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, section 3.2.
    """

    title: ClassVar[str] = "sinks and a window"

    sinks: Annotated[int, Ge(0)] = 4
    """real slots at the beginning of a row that always stay"""

    def check_options(self) -> None:
        if self.budget <= self.sinks:
            raise ConfigError(f"cache streaming: budget must be above sinks={self.sinks}, got {self.budget}")

    def worth(self, state: CacheState) -> Tensor:
        """Later is worth more, and the first ones most."""
        slot = state.kept.view()["slot"]
        order = (slot >= 0).cumsum(-1)
        return slot.double().masked_fill(order <= self.sinks, float("inf"))
