"""Show facts, options and equation of a mechanism, position, memory, cache policy, block, depth or preset; or a run."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import catalog, specs
from regard.cli._kinds import KINDS, MECHANISM, PACKAGES, PRESET, names
from regard.cli._options import words
from regard.cli._output import emit, say, table, tell
from regard.core.errors import ConfigError, nearest, unknown
from regard.models import presets


@dataclass(frozen=True)
class Options:
    """The entry to show."""

    name: str = words()
    """a name from `regard list`, or words that a mechanism is known by, such as 'sliding window'; a specification such
    as 'linear(feature_map=relu)', `module:Class`, or `kind:name` for one of several that share a name, such as
    depth:fixed; or the folder of a run: what it was trained to, the spans of its heads and the guarantee of its
    exits"""
    trust: bool = False
    """a run may name its mechanism by import path, module:Class, which runs that module"""
    json: bool = False
    """machine output on stdout"""


@dataclass(frozen=True)
class Entry:
    """What is said of a name: its docstring, its options by name, its facts."""

    kind: str
    name: str
    described: str
    options: Mapping[str, Mapping[str, object]]
    facts: Mapping[str, object]

    def document(self) -> dict[str, object]:
        """As plain data."""
        shown = {key: {**option, "default": repr(option["default"])} for key, option in self.options.items()}
        return {"kind": self.kind, "name": self.name, **self.facts, "options": shown, "docstring": self.described}


def run(options: Options) -> int:
    """Print what the catalog has of that name, or what a run is."""
    is_run = (Path(options.name) / "config.toml").is_file()
    if is_run and ("/" in options.name or not _catalogued(options.name)):
        laboratory = importlib.import_module("regard_lab.run_info")
        return laboratory.show(options.name, trust=options.trust, json=options.json)
    first, slash, _ = options.name.partition("/")
    if slash and not _catalogued(f"{MECHANISM}:{first.strip()}"):  # linear / softmax are layers, runs/softmax are not
        raise ConfigError(
            f"{options.name} is not a run: it has no config.toml; give the folder of one, or a name of regard list"
        )
    if is_run:
        tell(f"There is a run {options.name} too: regard info ./{options.name}")
    if options.trust:
        raise ConfigError(f"--trust is for runs, and {options.name!r} is none; leave it out")
    called = [] if _catalogued(options.name) else catalog.search(options.name)
    if len(called) > 1:
        tell(f"{options.name!r} also stands for {', '.join(called[1:])}")
    found = [(MECHANISM, called[0])] if called else find(options.name)
    entries = [_mechanism(name) if kind == MECHANISM else _part(kind, name) for kind, name in found]
    if options.json:
        first, *others = (entry.document() for entry in entries)
        emit({**first, "also": others} if others else first)
        return 0
    for at, entry in enumerate(entries):
        _show(entry, first=at == 0)
    return 0


def _show(entry: Entry, *, first: bool) -> None:
    say(f"{'' if first else chr(10)}{entry.kind} {entry.name}\n\n{entry.described}")
    explained = any("meaning" in option for option in entry.options.values())
    rows = [
        (key, option["type"], repr(option["default"]), *([option.get("meaning", "")] if explained else []))
        for key, option in entry.options.items()
    ]
    if rows:
        titles = ("option", "type", "default", *(["meaning"] if explained else []))
        say(table(*titles, rows=rows, title="\nOptions"))
    if entry.facts:
        lines = [(key, _plain(value)) for key, value in entry.facts.items()]
        say(table("fact", "value", rows=lines, title="\nFacts"))


def find(text: str) -> list[tuple[str, str]]:
    """(kind, specification) of every entry of a name; of a specification with options, the first.

    Raises:
        ConfigError: no entry of that name.
    """
    kind, _, inner = text.partition(":")
    searched, wanted = ((kind,), inner) if kind in KINDS else (KINDS, text)
    if MECHANISM in searched and (specs.is_path(wanted) or catalog.several(wanted)):
        return [(MECHANISM, wanted)]
    name, options, _ = wanted.partition("(")
    found = [(kind, wanted) for kind in searched if name.strip() in names(kind)]
    if found:
        return found[:1] if options else found
    known = {name for kind in searched for name in names(kind)}
    where = searched[0] if len(searched) == 1 else "catalog entry"
    if ":" in wanted:
        hint = "a class by its path is module:Class, with a capital"
    else:
        hint = catalog.meant(name) if MECHANISM in searched and catalog.search(name) else nearest(name, known)
    raise ConfigError(f"there is no {where} {wanted!r}: {hint}")


def _catalogued(text: str) -> bool:
    """Whether a folder of that name would stand in the way of an entry; ./NAME is the folder."""
    try:
        return bool(find(text))
    except ConfigError:
        return False


def _mechanism(spec: str) -> Entry:
    """The facts are those that hold with the options of the specification."""
    cls, options = catalog.resolve(spec)
    info = catalog.describe(spec)
    facts: dict[str, object] = {key: value for key, value in vars(info).items() if key not in ("supports", "losses")}
    facts |= {"supports": list(info.supports.names), "losses": dict(info.losses)}
    facts["inputs"] = [f"{name} ({declared})" for name, declared in info.inputs.items()]
    return Entry(MECHANISM, spec, inspect.getdoc(cls) or "", _options(cls, options), facts)


def _part(kind: str, spec: str) -> Entry:
    from regard.core.options import Configured

    parsed = specs.parse(spec)
    name, label = parsed.name, f"{kind} {parsed.name}"
    written: Any = presets.function(name) if kind == PRESET else specs.load(kind, name, specs.files(PACKAGES[kind]))
    described = inspect.getdoc(written) or ""
    if kind == "block":  # what its class takes are the parts of a model, which are no options
        if parsed.options:
            raise unknown(label, next(iter(parsed.options)), ())
        return Entry(kind, spec, described, {}, {})
    if kind == PRESET:
        presets.build(name, **parsed.options)
    elif issubclass(written, Configured):
        written.filled(parsed.options, label)
    else:
        specs.check_options(kind, name, written, parsed.options)
    return Entry(kind, spec, described, _options(written, parsed.options), {})


def _plain(value: object) -> object:
    if isinstance(value, list):
        return " ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} (weight {weight:g})" for key, weight in value.items()) or "none"
    return value


def _options(function: Callable[..., object], given: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The keyword-only arguments, with the values that are given for them."""
    from regard.core.option_text import meanings, type_text

    arguments = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options: dict[str, dict[str, object]] = {
        p.name: {"type": type_text(p.annotation), "default": given.get(p.name, p.default)} for p in arguments
    }
    for name, text in meanings(function).items():
        options[name]["meaning"] = text
    return options
