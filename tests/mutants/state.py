"""Mutants that remember wrongly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.core.attention import Attended, Call, State, Summary
from regard.core.errors import UnsupportedError
from regard.core.state import Entry, Slots, Tape, per_slot
from tests.mutants import mutant
from tests.mutants.toys import ToyDense, ToyKernel, ToyWindow, allowed_pairs, expanded


@mutant("state_splits")
class StaleCache(ToyDense):
    """Attends to the keys before this piece, and adds the piece afterwards."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if call.state is None or not call.past:
            return answer
        old = call.state.tensors()
        pairs = allowed_pairs(q.shape[2], call.past, call._replace(causal=False, key_mask=old.get("key_mask")))
        keys, values = (expanded(old[name], q.shape[1]) for name in "kv")
        return answer._replace(values=self.normalise(self.score(q, keys), pairs) @ values)


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

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        return super().remember(k, v, call._replace(key_mask=None) if call.past else call)


@mutant("remember")
class StoresQueriesOnly(ToyDense):
    """Keeps as many new keys as there are queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        grown, lead = answer.state, k.shape[2] - q.shape[2]
        if not (call.causal and isinstance(grown, Slots) and lead > 0):
            return answer
        picked = torch.cat([torch.arange(grown.kept - k.shape[2]), torch.arange(grown.kept)[-q.shape[2] :]])
        return answer._replace(state=grown.keep(picked))


@mutant("state_bias")
class BiasForgetsThePast(ToyDense):
    """Counts distances from the first slot of the piece."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if call.bias is not None and call.bias.high > 0 and call.past:
            call = call._replace(bias=replace(call.bias, high=call.bias.high + 1))
        return super().attend(q, k, v, call)


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
        return _SharedTape(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


@mutant("state_inference")
class ForgetsAtTheBorder(ToyKernel):
    """Begins anew where a state from inference mode, which may not be added to in place, goes on outside of it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if (
            isinstance(call.state, Summary)
            and call.state["sum"].is_inference()
            and not torch.is_inference_mode_enabled()
        ):
            empty = Summary({"sum": torch.zeros_like(call.state["sum"])}, call.past)
            call = call._replace(state=empty)
        return super().attend(q, k, v, call)


class _UnorderedSummary(Summary):
    def select(self, rows: Tensor) -> "Summary":
        return super().select(rows.sort().values)


@mutant("state_select")
class SelectSortsRows(ToyKernel):
    """Picks the right rows of a state in the wrong order."""

    def initial_state(self, batch: int, **like: Any) -> Summary:  # type: ignore[override]
        return _UnorderedSummary(super().initial_state(batch, **like).tensors())

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _UnorderedSummary({"sum": total}, state.length + keys)


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

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        return super().remember(expanded(k, self.heads.count), expanded(v, self.heads.count), call)

    def state_layout(self) -> Mapping[str, Entry]:
        heads = self.heads
        return {"k": per_slot(heads.count, heads.key_dim), "v": per_slot(heads.count, heads.value_width)}


class _ForgetfulSummary(Summary):
    def dump(self) -> dict[str, Tensor]:
        return {**super().dump(), "length": torch.tensor(0)}


@mutant("state_file")
class FileLosesLength(ToyKernel):
    """Writes its sums to the file, and not how many slots they hold."""

    def initial_state(self, batch: int, **like: Any) -> Summary:  # type: ignore[override]
        return _ForgetfulSummary(super().initial_state(batch, **like).tensors())

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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if call.causal or call.state is None or not k.shape[2]:
            return answer
        return answer._replace(values=super().attend(q, k, v, call._replace(state=None)).values)


@mutant("remember")
class NothingWithoutQueries(ToyKernel):
    """Counts keys that come without queries, and does not add them up."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        assert isinstance(state, Summary)
        return super().grown(state, state["sum"] if self.idle else total, keys)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        self.idle = not q.shape[2]
        return super().attend(q, k, v, call)


@mutant("remember")
class KeepsWhatWasAskedFor(ToyDense):
    """Keeps a value times the number of queries that came with it, at most once."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v * min(q.shape[2], 1), call)


class _SwappedSummary(Summary):
    def where(self, rows: Tensor, other: Any) -> "Summary":
        return super().where(~rows, other)


@mutant("state_where")
class TakesTheOtherRows(ToyKernel):
    """Joins two states by taking each row from the wrong one."""

    def initial_state(self, batch: int, **like: Any) -> Summary:  # type: ignore[override]
        return _SwappedSummary(super().initial_state(batch, **like).tensors())

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _SwappedSummary({"sum": total}, state.length + keys)


class _MaskOfOne(Slots):
    def where(self, rows: Tensor, other: Any) -> "Slots":
        joined, mask = super().where(rows, other), self.view().get("key_mask")
        if "key_mask" not in joined.tape.data:
            return joined
        every = torch.ones(len(rows), joined.kept, dtype=torch.bool)
        return joined.with_tensors({**joined.tensors(), "key_mask": every if mask is None else mask})


@mutant("state_where")
class MaskOfTheFirst(ToyDense):
    """Joins the keys of two states, and takes the mask of the first for all rows."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _MaskOfOne(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


class _OneTooFew(Slots):
    def rewind(self, count: int) -> "Slots":
        return replace(super().rewind(count - 1), length=self.length - count) if count else self


@mutant("state_rewind")
class GivesBackOneTooFew(ToyDense):
    """Counts the slots that are given back, and keeps one of them."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _OneTooFew(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


class _OnlyForgets(Slots):
    def rewind(self, count: int) -> "Slots":
        if count > self.kept:
            return super().rewind(count)
        return replace(self, stop=self.stop - count, length=self.length - count)


@mutant("state_rewind")
class WindowWithoutItsPast(ToyWindow):
    """Gives back the newest slots, and not those that they had pushed out of the window."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _OnlyForgets(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


class _Refusing(Slots):
    def rewind(self, count: int) -> "Slots":
        if count:
            raise UnsupportedError("none of them")
        return self


@mutant("state_rewind")
class RefusesToRewind(ToyDense):
    """Keeps every slot, and gives none back."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _Refusing(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


@mutant("prefix_reuse")
class GoesOnFromTheLastText(ToyKernel):
    """Keeps the sums of a text beside those of its prompt, and takes them for the next text of this prompt."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        assert isinstance(state, Summary)
        after = super().grown(state, total, keys)
        if state.length == 8:
            state["sum"].data = total
        return after


class _Shares(Summary):
    def select(self, rows: Tensor) -> "Summary":
        alike = len(rows) > 1 and bool((rows == rows[0]).all())
        return super().select(rows).map(lambda x: x / len(rows) if alike else x)


@mutant("prefix_reuse")
class DividesThePromptAmongRows(ToyKernel):
    """Rows that share a prompt have a share of its sums each."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _Shares({"sum": total}, state.length + keys)


class _TakenApart(Summary):
    def rewind(self, count: int) -> "Summary":
        if count:
            self["sum"].zero_()
        return super().rewind(count)


@mutant("state_rewind")
class RefusesTooLate(ToyKernel):
    """Refuses to give slots back once the sums are gone."""

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return _TakenApart({"sum": total}, state.length + keys)
