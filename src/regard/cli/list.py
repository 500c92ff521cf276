"""List the mechanisms, position schemes, memories, cache policies, blocks, depths and presets."""

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any

from regard import catalog
from regard.cli._kinds import KINDS, MECHANISM, PLURALS, names
from regard.cli._options import words
from regard.cli._output import emit, say, table, tell


@dataclass(frozen=True)
class Options:
    """The names to list."""

    pattern: str = words("*")
    """shell-style pattern on the names, or words that mechanisms are known by, such as 'sliding window'"""
    supports: tuple[str, ...] = ()
    """only mechanisms with all of these: causal bidirectional cross key_mask bias marks state prefix dropout"""
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Print the catalog."""
    mechanisms = catalog.names(options.pattern, options.supports)
    if not mechanisms:
        mechanisms = [name for name in catalog.search(options.pattern) if name in catalog.names("*", options.supports)]
    others: dict[str, list[str]] = {}
    if not options.supports:  # only mechanisms have capabilities
        others = {PLURALS[kind]: fnmatch.filter(names(kind), options.pattern) for kind in KINDS if kind != MECHANISM}
    if options.json:
        emit({"mechanisms": {name: _facts(name) for name in mechanisms}, **others})
        return 0
    if mechanisms:
        columns = ("name", "family", "title", "time", "state", "supports")
        say(table(*columns, rows=[_row(name) for name in mechanisms]))
    for kinds, found in others.items():
        if found:
            say(f"{kinds + ':':10} {', '.join(found)}")
    if not mechanisms and not any(others.values()):
        tell("nothing matches; regard list shows everything")
    return 0


def _facts(name: str) -> dict[str, Any]:
    """The facts of a mechanism as plain data."""
    info = catalog.outline(name)
    return {
        "family": catalog.family(name),
        **vars(info),
        "supports": asdict(info.supports),
        "losses": dict(info.losses),
        "inputs": {name: str(declared) for name, declared in info.inputs.items()},
    }


def _row(name: str) -> tuple[str, ...]:
    info = catalog.outline(name)
    return name, catalog.family(name), info.title, f"n^{info.time:g}", info.state, " ".join(info.supports.names)
