"""Prompt lookup: what followed the last tokens earlier in the text is guessed, and checked in one call."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.core.errors import UnsupportedError
from regard.models.continuing import Continuing
from regard.models.decoder import Hidden, LanguageModel, ModelState
from regard.models.sampling import Sampling

LONGEST = 3
"""tokens at the end that are looked up, fewer where these occur nowhere else"""


def guess(tokens: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that followed the latest earlier occurrence of the last ones; none if there is none.

    Example:
        >>> guess([5, 1, 2, 3, 4, 1, 2], 2)
        [3, 4]
    """
    for width in range(min(LONGEST, len(tokens) - 1), 0, -1):
        end = list(tokens[-width:])
        for first in range(len(tokens) - width - 1, -1, -1):
            if list(tokens[first : first + width]) == end:
                return list(tokens[first + width : first + width + count])
    return []


class Checked(NamedTuple):
    """tokens: that follow. state: before the last of them. layers: blocks that were taken for each of them, of a model
    whose depth decides that."""

    tokens: list[int]
    state: ModelState
    layers: list[int] | None


def checked(model: LanguageModel | Continuing, new: Sequence[int], draft: Sequence[int], state: ModelState) -> Checked:
    """The most likely tokens behind `new`, one for every guess that was right and one more, and the state before it.

    One call reads the new tokens and all guesses. Guesses that were wrong leave the state: slots are given back; sums,
    from which nothing can be taken, read again what was right.

    Args:
        new: the tokens behind the state, at least one.
        draft: guesses of those that follow.
        state: the past; it stays usable.
    """
    device = model.table.weight.device

    def read(tokens: Sequence[int]) -> tuple[Hidden, ModelState]:
        output = model.hidden(torch.tensor([tokens], device=device), state=state)
        assert output.state is not None
        return output, output.state

    output, after = read([*new, *draft])
    logits = model.logits(output.hidden[0, len(new) - 1 :])
    picked = Sampling(temperature=0.0).pick(logits, torch.zeros(len(logits), dtype=torch.float64)).tolist()
    right = next((at for at, token in enumerate(draft) if picked[at] != token), len(draft))
    wrong = len(draft) - right
    if wrong:
        try:
            after = after.rewind(wrong)
        except UnsupportedError:
            after = read([*new, *draft[:right]])[1]
    layers = None if output.blocks is None else output.blocks[0, len(new) - 1 :].tolist()[: right + 1]
    return Checked(picked[: right + 1], after, layers)
