"""The words after a verb, read into the dataclass of its options."""

from collections.abc import Sequence
from typing import TypeVar

import tyro

Options = TypeVar("Options")


def read(kind: type[Options], words: Sequence[str], *, verb: str, description: str | None) -> Options:
    """The options of a verb; wrong words, and `--help`, end the program as tyro does.

    Args:
        kind: a dataclass whose docstrings describe the options.
        words: after the verb.
        verb: for messages.
        description: text of the help on the verb.
    """
    return tyro.cli(
        kind,
        args=list(words),
        prog=f"regard {verb}",
        description=description,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
