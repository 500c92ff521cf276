"""Sequences that come in pieces: a call, its state, the next call."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention, State
from regard.testing.compare import require
from regard.testing.inputs import Inputs, here, run


def next_state(answer: Attended) -> State:
    """The state that a call gave."""
    require(answer.state is not None, "no state came back")
    assert answer.state is not None
    return answer.state


def lse_of(answer: Attended) -> Tensor:
    """The log-sum-exp that a call gave."""
    require(answer.lse is not None, "no log-sum-exp came back")
    assert answer.lse is not None
    return answer.lse


def start(mechanism: Attention, batch: int = 2, dtype: torch.dtype = torch.float64) -> State:
    """A state of no slots."""
    return mechanism.initial_state(batch, dtype=dtype, device=here())


def stream(
    mechanism: Attention,
    x: Inputs,
    cut: Sequence[int],
    *,
    state: State | None = None,
    how: Callable[..., Attended] = run,
    lse: bool = False,
    **of_slots: Tensor | None,
) -> tuple[Tensor, State]:
    """The values, or the log-sum-exp, and the last state of a sequence that comes in pieces.

    Args:
        mechanism: causal.
        x: the whole sequence.
        cut: slots of each piece.
        state: what it goes on from; None: nothing.
        how: `run`, or `call` to record gradients.
        lse: the log-sum-exp.
        of_slots: arguments of the call with one entry per slot, (batch, slots).
    """
    state, out, at = start(mechanism, x.k.shape[0], x.k.dtype) if state is None else state, list[Tensor](), 0
    before = state.length
    for count in cut:
        piece = {name: None if y is None else y[:, at : at + count] for name, y in of_slots.items()}
        answer = how(mechanism, x.slots(at, at + count), state=state, lse=lse, **piece)
        state, at = next_state(answer), at + count
        require(state.length == before + at, f"state.length is {state.length} after {before + at} slots")
        out.append(lse_of(answer) if lse else answer.values)
    return torch.cat(out, 2), state
