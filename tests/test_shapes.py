"""The checker that all other tests run with: it sees wrong shapes, and of calls that take turns those of each."""

import pytest
import torch
from jaxtyping import Float
from jaxtyping import TypeCheckError as Wrong
from torch import Tensor

from tests.shapes import FIRST, THEN, checked, some_calls


def rows() -> object:
    """A function that promises as many rows as columns."""

    @some_calls(typechecker=checked)
    def square(x: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        return x

    return square


def test_other_shapes_are_refused():
    with pytest.raises(Wrong):
        rows()(torch.zeros(2, 3))


@pytest.mark.parametrize("turns", [2, 3, 4, 6, 8, 12, 16])
def test_every_one_of_calls_that_take_turns_is_seen(turns):
    """Long after the beginning: whichever of them is wrong."""
    right, wrong = torch.zeros(2, 2), torch.zeros(2, 3)
    for at in range(turns):
        square = rows()
        for _ in range(FIRST):
            square(right)
        given = [wrong if number % turns == at else right for number in range(THEN * turns)]
        with pytest.raises(Wrong):
            list(map(square, given))
