"""Memories that are broken on purpose, each with the check of `check_part` that must catch it."""

# Memories are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.memory import MemoryState
from regard.memory.compressive import Compressive
from regard.memory.memorizing import Memorizing
from regard.memory.recent import Recent
from tests.mutants import mutant


def _changed(state: MemoryState, **content: Tensor) -> MemoryState:
    return replace(state, content={**state.content, **content})


@mutant("earlier_segments_are_read")
class LeadsWithNothing(Compressive):
    """Writes and never reads."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        return super().leading(self.initial_state(len(state["hidden"]), dtype=state["hidden"].dtype))


@mutant("no_gradient_reaches_earlier_segments")
class LetsAGradientThrough(Recent):
    """Keeps hidden states with their graph."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        return state["hidden"], state.content.get("key_mask")

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        return _changed(after, hidden=torch.cat([state["hidden"], x], 1)[:, -self.length :]), losses


@mutant("what_is_masked_is_not_remembered")
class LosesTheMask(Recent):
    """Remembers padding as text."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        return state["hidden"].detach(), None


@mutant("what_is_masked_is_not_remembered")
class CompressesPadding(Compressive):
    """Slots of nothing but padding count as real."""

    def squeezed(self, old: Tensor, real: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return super().squeezed(old, torch.ones_like(real), **given)


@mutant("what_is_masked_is_not_remembered")
class FindsPadding(Memorizing):
    """Does not tell the search what is real."""

    def search(self, q: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
        return super().search(q, keys, None)


@mutant("forgotten_rows_begin_anew")
class NotCleared(Memorizing):
    """Goes on with what earlier documents left."""

    def forget(self, state: MemoryState, rows: Tensor) -> MemoryState:
        return state


@mutant("forgotten_rows_begin_anew")
class ForgetsWhatIsRecentAlone(Compressive):
    """The slots of the document before stay."""

    def forget(self, state: MemoryState, rows: Tensor) -> MemoryState:
        after = super().forget(state, rows)
        real = torch.ones_like(after["compressed_mask"])
        kept = state.content.get("compressed_mask", real)
        return _changed(after, compressed=state["compressed"], compressed_mask=kept)


@mutant("memories_are_bounded")
class KeepsEverything(Recent):
    """Never lets a position go."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        every = torch.cat([state["hidden"], x.detach()], 1)
        return _changed(after, hidden=every), losses


@mutant("memories_are_bounded")
class HoldsTheTextBehind(Memorizing):
    """Keeps a view of a tensor that grows."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        behind = state["keys"].untyped_storage().nbytes() // state["keys"].element_size()
        longer = torch.cat([state["keys"].new_zeros(behind + x.numel()), after["keys"].flatten()])
        return _changed(after, keys=longer[behind + x.numel() :].view_as(after["keys"])), losses


@mutant("a_memory_is_a_value")
class WritesInPlace(Memorizing):
    """Puts the newest pairs over the oldest, where they lie."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        for name in ("keys", "values"):
            count = min(x.shape[1], state[name].shape[2])
            state[name][:, :, :count] = after[name][:, :, after[name].shape[2] - count :]
        return after, losses


@mutant("the_recent_past_in_order")
class OnePositionOff(Recent):
    """Leaves out the newest position."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        hidden, mask = super().leading(state)
        return hidden.roll(1, 1), mask


@mutant("slots_are_blocks_in_order")
class SlotsBehind(Compressive):
    """Puts the compressed slots behind the positions that came after them."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        hidden, mask = super().leading(state)
        slots = state["compressed"].shape[1]
        return hidden.roll(-slots, 1), None if mask is None else mask.roll(-slots, 1)


@mutant("slots_are_blocks_in_order")
class PadsTheRemainder(Compressive):
    """Compresses what does not fill a block, too."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        first = max(after["hidden"].shape[1] - self.length, 0)
        more = after["hidden"][:, :first].mean(1, keepdim=True) if first else after["hidden"][:, :0]
        slots = torch.cat([after["compressed"], more], 1)[:, -self.compressed :]
        return _changed(after, hidden=after["hidden"][:, first:], compressed=slots), losses


@mutant("the_loss_trains_the_compression")
class TrainedByTheTask(Compressive):
    """Keeps the slots with their graph, and reads them with it."""

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        hidden, mask = super().leading(state)
        return torch.cat([self.squeezed(hidden[:, : self.rate], hidden.new_ones(len(hidden), self.rate).bool())[0],
                          hidden[:, 1:]], 1), mask  # fmt: skip


@mutant("the_loss_trains_the_compression")
class TrainsTheLayer(Compressive):
    """The loss of the memory reaches the queries, and so the network."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        return after, {name: loss + given["q"].square().mean() for name, loss in losses.items()}


@mutant("found_by_sorting")
class LastInFirstOut(Memorizing):
    """Keeps the oldest pairs."""

    def write(self, state: MemoryState, x: Tensor, **given: Any) -> Any:
        after, losses = super().write(state, x, **given)
        missing = max(self.pairs - state["keys"].shape[2], 0)
        oldest = {
            name: torch.cat([state[name], after[name][:, :, -x.shape[1] :][:, :, :missing]], 2)
            for name in ("keys", "values")
        }
        return _changed(after, **oldest), losses


@mutant("found_by_sorting")
class FindsTheFarthest(Memorizing):
    """The smallest cosines."""

    def search(self, q: Tensor, keys: Tensor, real: Tensor | None) -> Tensor:
        return super().search(-q, keys, real)


@mutant("found_by_sorting")
class TurnsTheGate(Memorizing):
    """An open gate closes."""

    def read(self, q: Tensor, local: Tensor, state: MemoryState) -> Tensor:
        mixed = super().read(q, local, state)
        gate = self.gates.sigmoid()[:, None, None]
        average = (mixed - (1 - gate) * local) / gate
        return (1 - gate) * average + gate * local
