"""What the last queries looked at, chosen once, where the caller says so."""

from typing import Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from regard.core.attention import Attention
from regard.core.call import Attended
from regard.core.composite import States
from regard.core.errors import ConfigError
from regard.core.options import weight
from regard.memory.caches._base import CacheState, Eviction, newest, weighable
from regard.memory.caches._slots import Rows


@final
class Snapkv(Eviction):
    """Keeps every slot until a call within `compressing` ends: then what the last `window` of its queries gave most,
    in sums that are averaged over neighbouring slots, and the slots of those queries themselves.

    Between two compressions the state grows. Tokens behind the named point have no part in the choice; a call of fewer
    tokens than `window` chooses by what it has, and one without any, or whose tokens all left before the layer, keeps
    the newest.

    Source: Li et al. 2024, SnapKV, sections 4.1 and 4.2.
    """

    title: ClassVar[str] = "what the last queries saw"
    waits: ClassVar[bool] = True

    budget: Annotated[int, Ge(1)] = 2048
    """slots to keep in each head of keys, those of the window among them"""
    window: Annotated[int, Ge(1)] | None = None
    """last queries of the call that choose; None: 32, or half of a budget below 64, rounded up"""
    pool: Annotated[int, Ge(1)] = 5
    """neighbouring slots over which weights are averaged, an odd number"""

    due: bool = weight()
    """whether calls end with a compression; see `compressing`"""

    def setup(self) -> None:
        self.due = False

    @property
    def choosing(self) -> int:
        """How many of the last queries choose."""
        return min(32, (self.budget + 1) // 2) if self.window is None else self.window

    def check_options(self) -> None:
        if self.window is not None and self.budget < self.window:
            raise ConfigError(f"cache snapkv: budget must be at least window={self.window}, got {self.budget}")
        if not self.pool % 2:
            raise ConfigError(f"cache snapkv: pool must be odd, got {self.pool}")

    def check(self, attention: Attention) -> None:
        super().check(attention)
        weighable(attention, "snapkv")

    def worth(self, state: CacheState) -> Tensor:
        """What it was given, averaged over neighbours; the slots of the window are worth most, and lend nothing."""
        kept = state.kept.view()
        own = newest(kept["slot"], self.choosing)
        given = kept["weight"].masked_fill(own | (kept["slot"] < 0), 0)
        pooled = F.avg_pool1d(given, self.pool, stride=1, padding=self.pool // 2)
        return pooled.masked_fill(own, float("inf"))

    def rows(self, attention: Attention, rows: Rows, state: States, counted: Tensor | None) -> Attended:
        assert isinstance(state, CacheState)
        past, keys = state.length, rows.k.shape[2]
        if not self.due or state.kept.kept + keys <= self.budget:
            seen, state = self.append(attention, rows, state, weigh=False)
            return Attended(seen.values, state)
        split, parts = keys - min(self.choosing, rows.q.shape[2]), list[Tensor]()
        if split:
            seen, state = self.append(attention, rows.cut(0, split, past), state, weigh=False)
            parts.append(seen.values)
        asked = None if counted is None else counted[:, split:]
        seen, state = self.append(attention, rows.cut(split, keys, past), state, weigh=True, counted=asked)
        weighed, weights = state.kept.with_tensors(state.kept.view()), seen.weights
        if weights is None:  # no query chooses
            weights = torch.zeros(weighed.view()["slot"].shape, dtype=torch.float32, device=rows.k.device)
        weighed.tape.data["weight"] = weights
        chosen = self.evict(CacheState({"slots": state.slots, "kept": weighed}))
        del chosen.kept.tape.data["weight"]
        return Attended(torch.cat([*parts, seen.values], 2), chosen)
