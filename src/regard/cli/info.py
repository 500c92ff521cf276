"""Show the facts, options and equation of one mechanism, position scheme, memory or preset."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tyro

from regard import catalog, memory, position, specs
from regard.cli._output import console, emit, table
from regard.errors import ConfigError, nearest
from regard.models import presets

NAMES: Mapping[str, Callable[[], list[str]]] = {
    "mechanism": catalog.names,
    "position": position.names,
    "memory": memory.names,
    "preset": presets.names,
}


@dataclass(frozen=True)
class Options:
    """The entry to show."""

    name: tyro.conf.Positional[str]
    """a name from `regard list`, a specification such as 'linear(feature_map=relu)', `module:Class`, or `kind:name`
    where a mechanism, position, memory or preset share one"""
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Print one entry of the catalog."""
    kind, name = find(options.name)
    described, accepted, facts = _mechanism(name) if kind == "mechanism" else _entry(kind, name)
    if options.json:
        shown = {key: {**entry, "default": repr(entry["default"])} for key, entry in accepted.items()}
        emit({"kind": kind, "name": name, **facts, "options": shown, "docstring": described})
        return 0
    screen = console()
    screen.print(f"{kind} {name}\n\n{described}", markup=False)
    explained = any("meaning" in entry for entry in accepted.values())
    rows = [
        (key, entry["type"], repr(entry["default"]), *([entry.get("meaning", "")] if explained else []))
        for key, entry in accepted.items()
    ]
    if rows:
        titles = ("option", "type", "default", *(["meaning"] if explained else []))
        screen.print(table(*titles, rows=rows, title="\nOptions"))
    if facts:
        lines = [(key, _plain(value)) for key, value in facts.items()]
        screen.print(table("fact", "value", rows=lines, title="\nFacts"))
    return 0


def find(text: str) -> tuple[str, str]:
    """(kind, name) of a text; a bare name is a mechanism first, then a position, a memory, a preset.

    Raises:
        ConfigError: no entry of that name.
    """
    kind, _, inner = text.partition(":")
    if kind not in NAMES and specs.is_path(text):
        return "mechanism", text
    searched, wanted = ((kind,), inner) if kind in NAMES else (tuple(NAMES), text)
    for kind in searched:
        if (wanted.partition("(")[0] if kind == "mechanism" else wanted) in NAMES[kind]():
            return kind, wanted
    known = {name for kind in searched for name in NAMES[kind]()}
    where = searched[0] if len(searched) == 1 else "catalog entry"
    raise ConfigError(f"there is no {where} {wanted!r}: {nearest(wanted, known)}")


def _mechanism(spec: str) -> tuple[str, dict[str, dict[str, object]], dict[str, object]]:
    """Docstring, options and facts: those that hold with the options of the specification."""
    from regard.option_text import meanings

    cls, options = catalog.resolve(spec)
    info = catalog.describe(spec)
    accepted = _options(cls)
    for name, text in meanings(cls).items():
        accepted[name]["meaning"] = text
    for name, value in options.items():
        accepted[name]["default"] = value
    facts: dict[str, object] = {key: value for key, value in vars(info).items() if key not in ("supports", "losses")}
    facts |= {"supports": list(info.supports.names), "losses": dict(info.losses)}
    facts["inputs"] = [f"{name} ({declared})" for name, declared in info.inputs.items()]
    return inspect.getdoc(cls) or "", accepted, facts


def _entry(kind: str, name: str) -> tuple[str, dict[str, dict[str, object]], dict[str, object]]:
    if kind == "preset":
        make = presets.function(name)
        return inspect.getdoc(make) or "", _options(make), {}
    package = {"position": position.PACKAGE, "memory": memory.PACKAGE}[kind]
    cls = specs.load(kind, name, specs.files(package))
    return inspect.getdoc(cls) or "", _options(cls if kind == "memory" else cls.__init__), {}


def _plain(value: object) -> object:
    if isinstance(value, list):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} (weight {weight:g})" for key, weight in value.items()) or "none"
    return value


def _options(function: Callable[..., object]) -> dict[str, dict[str, object]]:
    from regard.option_text import type_text

    return {
        p.name: {
            "type": type_text(p.annotation),
            "default": p.default,
        }
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
