"""Mutants that break what the protocol does around the algorithm: what is refused, padded, widened, counted."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import Attended, Call
from regard.core.bias import ScoreBias
from regard.core.state import Entry, Slots, State, Tape
from tests.mutants import mutant
from tests.mutants.toys import ToyDense, ToyGated, ToyTable, positions


@mutant("misfits")
class OneRowForAll(ToyDense):
    """Gives one row of keys and values to every row of queries."""

    def _check_call(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
        k, v = (x.expand(q.shape[0], *x.shape[1:]) if len(x) == 1 else x for x in (k, v))
        super()._check_call(q, k, v, *rest)


@mutant("misfits")
class AnyBias(ToyDense):
    """Takes a bias for any number of heads, rows and keys."""

    def _check_bias(self, bias: ScoreBias, q: Tensor, keys: int) -> None:
        del bias, q, keys

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        if call.bias is None or call.bias.curve is None:
            return super().biased(logits, call)
        return super().biased(logits, call._replace(bias=replace(call.bias, curve=call.bias.curve[: self.heads.count])))


@mutant("misfits")
class CountsBackFromTheKeys(ToyDense):
    """Takes a slot below 0 for one that is counted from the last key back."""

    def _check_call(self, q: Tensor, k: Tensor, v: Tensor, a: Any, b: Any, c: Any, d: Any, query_start: Any) -> None:
        super()._check_call(q, k, v, a, b, c, d, None if query_start is None else query_start % q.shape[2])


@mutant("state_bias")
class TableOfTheCall(ToyDense):
    """Takes the last columns of a table for the keys of the call, and adds nothing for those of the state."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        table = None if call.bias is None else call.bias.table
        if table is None or call.bias is None or not call.past:
            return super().biased(logits, call)
        late = table.masked_fill(torch.arange(table.shape[3]) < call.past, 0)
        return super().biased(logits, call._replace(bias=replace(call.bias, table=late)))


@mutant("bias_reach")
class ReachOfTheKeys(ToyDense):
    """Counts distances up to the number of keys, though queries of another sequence may be more."""

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        low, high = super().bias_distances(queries, keys, state)
        return low, min(high, keys - 1)


@mutant("length_limit")
class DefinedBeyondItsWeights(ToyTable):
    """Refuses a sequence that is too long for its weights, and defines its beginning."""

    def definition(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:  # type: ignore[override,misc]
        limit = self.slots.shape[1]
        return super().definition(q[:, :, :limit], k[:, :, :limit], v[:, :, :limit], **given)


@mutant("left_padding_refusal")
class AcceptsLeftPaddingInAState(ToyTable):
    """Refuses left padding, but not where a state is to hold it."""

    def _check_call(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *rest: Any) -> None:
        late = key_mask is not None and rest[2] is not None
        super()._check_call(q, k, v, None if late else key_mask, *rest)


@mutant("exact_definition")
class DefinesUnderAutocast(ToyDense):
    """Leaves autocast on inside the definition."""

    def _define(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super()._define(q, k, v, call) if call.state else Attended(self.reference(q, k, v, call))


@mutant("exact_definition")
class NarrowGates(ToyGated):
    """Keeps the gates of the definition in the dtype of the keys."""

    def layout(self) -> Mapping[str, Entry]:  # type: ignore[override,misc]
        return {name: replace(each, dtype="call") for name, each in super().layout().items()}


@mutant("keys_before")
class PadsTheMaskInFront(ToyGated):
    """Takes the last of the gates for those of a masked part, whose gates go on to its last query."""

    def _neutral(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        return x.masked_fill(F.pad(hidden, (0, 0, x.shape[2] - hidden.shape[2], 0)), self.info.inputs[name].neutral)


@mutant("keys_before")
class GatesUpToTheLastKey(ToyGated):
    """Behind a state, leaves out the gates between the last key of a part and its queries."""

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        k, v, grown = super().remember(k, v, call)
        slot = torch.arange(grown.inputs["log_gate"].shape[2])
        gates = grown.inputs["log_gate"].masked_fill((slot >= k.shape[2]) & (call.past > 0), 0)
        return k, v, grown._replace(inputs={"log_gate": gates})


@mutant("keys_before")
class QueriesBehindTheLastKey(ToyDense):
    """Behind a state, takes the queries for those of the last keys."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        pairs = super().allowed(queries, keys, call)
        i, j = positions(queries, keys, call._replace(query_start=keys - queries))
        return pairs & (j <= i) if call.causal and call.past else pairs


@mutant("log_sum_exp")
class NoneForNothing(ToyDense):
    """Returns no log-sum-exp of a call without queries and keys."""

    def forward(self, q: Tensor, *given: Any, **named: Any) -> Attended:  # type: ignore[override,misc]
        answer = super().forward(q, *given, **named)
        return answer if q.shape[2] else answer._replace(lse=None)


@mutant("log_sum_exp")
class NoneWithDropout(ToyDense):
    """Returns no log-sum-exp where weights are dropped."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(lse=None) if self.training and self.heads.dropout else answer


class _GoesBackInPlace(Slots):
    def rewind(self, count: int) -> "Slots":
        back = super().rewind(count)
        if count and self.tape.filled == self.stop:
            self.tape.filled = back.stop
        return back


@mutant("state_rewind")
class WritesOverWhatWasGivenBack(ToyDense):
    """Lets the next slots take the place of those given back, though the longer state still holds them."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _GoesBackInPlace(Tape(super().initial_state(batch, **like).tensors(), 0, 0))


class _AnyLength(Slots):
    def where(self, rows: Tensor, other: Any) -> "Slots":
        same = self.length == other.length
        return super().where(rows, other) if same else self


@mutant("state_where")
class JoinsAnyLengths(ToyDense):
    """Joins states of other numbers of slots by leaving the second out."""

    def initial_state(self, batch: int, **like: Any) -> Slots:  # type: ignore[override]
        return _AnyLength(Tape(super().initial_state(batch, **like).tensors(), 0, 0))
