"""Many prompts at once: one on every line, answered by lines of JSON in the same order."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.cli import as_json
from regard.core.errors import DataError, InputError, LimitError
from regard_lab.tasks.text_files import decode, lines

if TYPE_CHECKING:
    from regard.models.generate import Piece

AT_A_TIME = 16
"""prompts that share a batch"""


class Prompt(NamedTuple):
    """A line; where: its file and number, for messages."""

    where: str
    text: str


def prompts(file: str, standard_input: Iterable[bytes]) -> list[Prompt]:
    """The lines of a file of UTF-8 text, or of standard input where its name is -.

    Raises:
        DataError: no such file, one that is empty, binary or in another encoding, or a line without text.
    """
    name = "standard input" if file == "-" else file
    if file == "-":
        read = (decode(raw, f"{name}, line {at}", first=at == 1) for at, raw in enumerate(standard_input, 1))
    else:
        read = lines(Path(file))
    found = [Prompt(f"{name}, line {at}", line.rstrip("\r\n")) for at, line in enumerate(read, 1)]
    for prompt in found:
        if not prompt.text.strip():
            raise DataError(f"{prompt.where} is empty: give a prompt on every line")
    if not found:
        raise DataError(f"{name} is empty: give a prompt on every line")
    return found


def answer(prompt: Prompt, **values: object) -> None:
    """Write the answer to a prompt."""
    print(as_json({"prompt": prompt.text, **values}), flush=True)


def continued(given: Sequence[Prompt], pieces: Iterable["Piece"]) -> None:
    """Write every continuation as soon as it and those before it are whole.

    Args:
        given: the prompts.
        pieces: of their rows, in any order.
    """
    texts, ended, first = [""] * len(given), [""] * len(given), 0
    for piece in pieces:
        texts[piece.row] += piece.text
        ended[piece.row] = piece.ended or ""
        while first < len(given) and ended[first]:
            answer(given[first], text=texts[first], ended=ended[first])
            first += 1
    for prompt in given[first:]:  # of which no token was asked for
        answer(prompt, text="", ended="length")


@contextmanager
def told(where: str) -> Iterator[None]:
    """An error about a prompt says which line it is."""
    try:
        yield
    except (InputError, LimitError) as error:
        raise type(error)(f"{where}: {error}") from error
