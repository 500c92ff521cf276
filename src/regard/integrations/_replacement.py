"""The replacement of a model's attention, built and checked before anything is changed."""

from collections.abc import Callable
from typing import NamedTuple


class Replacement(NamedTuple):
    """Positions that get other attention, by their names; `carry_out` changes the model."""

    names: tuple[str, ...]
    carry_out: Callable[[], None]
