"""A conversation on the terminal: what you say on a line, and the reply as it comes."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from regard_lab.cli._output import write

if TYPE_CHECKING:
    from regard.integrations.pretrained import PublishedModel


def converse(published: "PublishedModel", system: str | None, sampling: Mapping[str, Any]) -> int:
    """Reply to every line of standard input, until it ends (on a terminal: Ctrl-D).

    Args:
        published: an instruct model.
        system: what it is told first; None: what its template says.
        sampling: options of `Chat.say`.
    """
    from regard.integrations.chat import Chat

    chat = Chat(published, system=system)
    for line in _lines():
        if line.strip():
            for piece in chat.say(line, **sampling):
                write(piece)
            write("\n")
    return 0


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.removesuffix("\n") for line in sys.stdin)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can then be edited
    print("Write a line and press Enter; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
