"""Show the facts, options and equation of one mechanism, position scheme or preset."""

import inspect
from dataclasses import dataclass

import tyro

from regard import catalog, position, specs
from regard.cli._output import console, emit, table
from regard.errors import ConfigError, nearest
from regard.models import presets


@dataclass(frozen=True)
class Options:
    """What to show."""

    name: tyro.conf.Positional[str]
    """a name from `regard list`, `module:Class`, or `kind:name` where a mechanism, position or preset share one"""
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Print one entry of the catalog."""
    kind, name = find(options.name)
    if kind == "mechanism":
        return _mechanism(name, machine=options.json)
    if kind == "preset":
        described = inspect.getdoc(presets.function(name)) or ""
        facts: dict[str, object] = {"kind": kind, "name": name, "docstring": described}
    else:
        cls = position.position_class(name)
        described = inspect.getdoc(cls) or ""
        facts = {"kind": kind, "name": name, "docstring": described, "source": cls.source}
    if options.json:
        emit(facts)
    else:
        console().print(f"[bold]{kind} {name}[/bold]\n\n{described}", highlight=False)
    return 0


def find(text: str) -> tuple[str, str]:
    """(kind, name) of a text; a bare name is a mechanism first, then a position, then a preset.

    Raises:
        ConfigError: no entry of that name.
    """
    kinds = {"mechanism": catalog.names(), "position": position.names(), "preset": presets.names()}
    kind, _, rest = text.partition(":")
    if kind in kinds:
        kinds, text = {kind: kinds[kind]}, rest
    elif specs.is_path(text):
        return "mechanism", text
    for kind, names in kinds.items():
        if text in names:
            return kind, text
    known = [name for names in kinds.values() for name in names]
    raise ConfigError(f"nothing in the catalog is called {text!r}: {nearest(text, known)}")


def _mechanism(name: str, *, machine: bool) -> int:
    cls, _ = catalog.resolve(name)
    info = cls.info
    accepted = {
        p.name: {"type": inspect.formatannotation(p.annotation), "default": p.default}
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    described = inspect.getdoc(cls) or ""
    facts = {key: value for key, value in vars(info).items() if key not in ("supports", "losses")}
    if machine:
        emit(
            {
                "kind": "mechanism",
                "name": name,
                **facts,
                "supports": list(info.supports.names),
                "losses": dict(info.losses),
                "options": {key: {**entry, "default": repr(entry["default"])} for key, entry in accepted.items()},
                "docstring": described,
            }
        )
        return 0
    screen = console()
    screen.print(described, markup=False)
    rows = [(key, entry["type"], repr(entry["default"])) for key, entry in accepted.items()]
    screen.print(table("option", "type", "default", rows=rows, title="\nOptions"))
    facts |= {"supports": " ".join(info.supports.names), "losses": dict(info.losses) or "none"}
    screen.print(table("fact", "value", rows=list(facts.items()), title="Facts"))
    return 0
