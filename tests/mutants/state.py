"""Mutants that remember wrongly."""

from typing import Any

import torch
from torch import Tensor

from regard.core import Attended, Slots, State, Summary
from regard.state import Tape
from tests.mutants import mutant
from tests.mutants.toys import ToyDense, ToyKernel, ToyWindow, allowed_pairs


@mutant("state_splits")
class ForgetsState(ToyKernel):
    """Starts every piece from nothing, and counts on."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:  # type: ignore[override]
        fresh = None if state is None else self.initial_state(q.shape[0], dtype=q.dtype)
        values, grown, losses = super().attend(q, k, v, state=fresh, **given)
        if state is not None and isinstance(grown, Summary):
            grown = Summary(grown.content, state.length + k.shape[2])
        return Attended(values, grown, losses)


@mutant("state_splits")
class StaleCache(ToyDense):
    """Attends to the keys before this piece, and adds the piece afterwards."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:  # type: ignore[override]
        values, grown, losses = super().attend(q, k, v, state=state, **given)
        if state is not None and state.length:
            old = state.tensors()
            pairs = allowed_pairs(q.shape[2], old["k"].shape[2], False, old.get("key_mask"))
            one = old["k"].repeat_interleave(self.heads.group, 1), old["v"].repeat_interleave(self.heads.group, 1)
            values = self.normalise(self.score(q, one[0]), pairs) @ one[1]
        return Attended(values, grown, losses)


@mutant("state_splits")
class WindowOffByPast(ToyWindow):
    """Keeps one slot too few."""

    def forget(self, state: State) -> State:
        assert isinstance(state, Slots)
        return state.drop(max(0, state.kept - self.window + 1))


@mutant("state_splits")
class PartialChunkLost(ToyKernel):
    """Adds only full chunks to its sums."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        assert isinstance(state, Summary)
        return super().grown(state, total if keys % 4 else state["sum"], keys)


@mutant("state_mask")
class StateForgetsMask(ToyDense):
    """Keeps hidden keys as if they were real."""

    def remember(self, state: State, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Slots:
        grown = super().remember(state, k, v, key_mask)
        if key_mask is None:
            return grown
        bare = super().remember(state, k, v, None)
        return bare if bare.length > k.shape[2] else grown


@mutant("state_prefix")
class StoresQueriesOnly(ToyDense):
    """Keeps as many new keys as there are queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:  # type: ignore[override]
        values, grown, losses = super().attend(q, k, v, state=state, **given)
        lead = k.shape[2] - q.shape[2]
        if self.heads.causal and isinstance(grown, Slots) and lead > 0:
            picked = torch.cat([torch.arange(grown.kept - k.shape[2]), torch.arange(grown.kept)[-q.shape[2] :]])
            return Attended(values, grown.keep(picked), losses)
        return Attended(values, grown, losses)


@mutant("state_bias")
class BiasForgetsThePast(ToyDense):
    """Counts distances from the first slot of the piece."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, bias: Any, **given: Any) -> Attended:  # type: ignore[override]
        if bias is not None and state is not None and bias.high > 0 and state.length:
            from dataclasses import replace

            bias = replace(bias, high=bias.high + 1)
        return super().attend(q, k, v, state=state, bias=bias, **given)


@mutant("state_immutability")
class SumsInPlace(ToyKernel):
    """Adds to the sums of the state that it was given."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        assert isinstance(state, Summary)
        with torch.no_grad():
            state["sum"].copy_(total)
        return Summary({"sum": state["sum"]}, state.length + keys)


class _SharedTape(Slots):
    """Slots that write behind their end although another state may have."""

    def append(self, key_mask: Tensor | None = None, **new: Tensor) -> "Slots":
        if self.stop + next(iter(new.values())).shape[2] <= self.tape.capacity:
            self.tape.filled = self.stop
        return super().append(key_mask, **new)


@mutant("state_immutability")
class OverwritesSharedTape(ToyDense):
    """Appends where a sibling has already written."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        empty = super().initial_state(batch, **like)
        return _SharedTape(Tape(dict(empty.tape.data), 0, 0))


@mutant("state_inference")
class SumsOnTheSpot(ToyKernel):
    """Adds to its own copy of the sums in place, which a state from inference mode does not allow."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        assert isinstance(state, Summary)
        if state.length:
            state["sum"].add_(0)
        return super().grown(state, total, keys)


class _UnorderedSummary(Summary):
    def select(self, rows: Tensor) -> "Summary":
        return super().select(rows.sort().values)


@mutant("state_select")
class SelectSortsRows(ToyKernel):
    """Picks the right rows of a state in the wrong order."""

    def initial_state(self, batch: int, **like: Any) -> Summary:  # type: ignore[override]
        return _UnorderedSummary(super().initial_state(batch, **like).content)

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _UnorderedSummary({"sum": total}, state.length + keys)


@mutant("state_bytes")
class WrongFormula(ToyDense):
    """States its size without the values."""

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        return batch * length * self.heads.kv_heads * self.heads.key_dim * dtype.itemsize


@mutant("state_bytes")
class WindowKeepsEverything(ToyWindow):
    """Sees a window, and keeps every key."""

    def forget(self, state: State) -> State:
        return state


@mutant("state_bytes")
class NarrowState(ToyKernel):
    """Keeps its sums in bfloat16, and states float32."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return Summary({"sum": total.bfloat16()}, state.length + keys)


@mutant("grouped_heads")
class ExpandedState(ToyDense):
    """Keeps one copy of the keys per query head."""

    def remember(self, state: State, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Slots:
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        return super().remember(state, k, v, key_mask)

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        k, v = (
            torch.empty(batch, self.heads.count, 0, w, **like) for w in (self.heads.key_dim, self.heads.value_width)
        )
        return Slots.empty(k=k, v=v)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        return super().state_nbytes(batch, length, dtype) * self.heads.group


class _ForgetfulSummary(Summary):
    def dump(self) -> dict[str, Tensor]:
        return {**super().dump(), "length": torch.tensor(0)}


@mutant("state_file")
class FileLosesLength(ToyKernel):
    """Writes its sums to the file, and not how many slots they hold."""

    def initial_state(self, batch: int, **like: Any) -> Summary:  # type: ignore[override]
        return _ForgetfulSummary(super().initial_state(batch, **like).content)

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _ForgetfulSummary({"sum": total}, state.length + keys)


@mutant("state_gradients")
class DetachedState(ToyKernel):
    """Cuts the gradient at every piece."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return super().grown(state, total.detach(), keys)


@mutant("state_of_source")
class IgnoresSource(ToyDense):
    """Attends to the keys of the call alone when it is not causal."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, state: State | None, **given: Any) -> Attended:  # type: ignore[override]
        if self.heads.causal or state is None or not k.shape[2]:
            return super().attend(q, k, v, state=state, **given)
        values = super().attend(q, k, v, state=None, **given).values
        return Attended(values, self.remember(state, k, v, given["key_mask"]), {})
