"""List the mechanisms, position schemes, presets and memories."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from regard import catalog, memory, position
from regard.cli._output import console, emit, table
from regard.models import presets


@dataclass(frozen=True)
class Options:
    """What to list."""

    pattern: tyro.conf.Positional[str] = "*"
    """shell-style pattern on the names"""
    supports: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CAPABILITY...")] = ()
    """only mechanisms with all of these: causal bidirectional cross key_mask bias marks state prefix dropout"""
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Print the catalog."""
    names = catalog.names(options.pattern, options.supports)
    if options.json:
        emit(
            {
                "mechanisms": {name: {"family": catalog.family(name), **_plain(asdict_info(name))} for name in names},
                "positions": position.names(),
                "memories": memory.names(),
                "presets": presets.names(),
            }
        )
        return 0
    rows = []
    for name in names:
        info = catalog.outline(name)
        rows.append(
            (name, catalog.family(name), info.title, f"n^{info.time:g}", info.state, " ".join(info.supports.names))
        )
    screen = console()
    screen.print(table("name", "family", "title", "time", "state", "supports", rows=rows))
    if not options.supports and options.pattern == "*":
        screen.print("positions:", ", ".join(position.names()))
        screen.print("memories: ", ", ".join(memory.names()))
        screen.print("presets:  ", ", ".join(presets.names()))
    return 0


def asdict_info(name: str) -> dict[str, object]:
    """The facts of a mechanism as plain data."""
    info = catalog.outline(name)
    return {**{key: value for key, value in vars(info).items() if key != "supports"}, "supports": asdict(info.supports)}


def _plain(facts: dict[str, object]) -> dict[str, object]:
    return {**facts, "losses": dict(facts["losses"])}  # type: ignore[call-overload]
