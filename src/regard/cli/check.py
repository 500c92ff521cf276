"""Check that a mechanism, or a part of models, keeps every promise of its kind; exits 7 if one is broken."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import tyro
from rich.markup import escape

from regard import catalog, specs
from regard.cli._kinds import MECHANISM, PACKAGES, PRESET
from regard.cli._options import Json
from regard.cli._output import console, emit, table
from regard.cli.info import find
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.testing import CheckResult


@dataclass(frozen=True)
class Options:
    """The mechanisms and parts of models to check."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """names from `regard list`, specifications such as 'local(window=3)', or `module:Class`; `all` for the
    mechanisms of the catalog; names of positions, memories, cache policies, blocks and depths, such as depth:fixed"""
    json: Json = False
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    """where the mechanisms run; auto: cuda, else mps, else cpu"""
    verbose: bool = False
    """print passed and excused checks too"""


def run(options: Options) -> int:
    """Run the conformance suite."""
    if not options.names:
        raise ConfigError("name what to check: names from `regard list`, module:Class, or all")
    names = catalog.names() if options.names == ("all",) else list(options.names)
    found = {name: find(name)[0] for name in names}  # refuses what is not there before torch is imported
    from regard.training.device import chosen_device

    device = chosen_device(options.device).type
    screen = console(machine=options.json)
    everything = {}
    for name in names:
        results = _results(*found[name], device)
        everything[name] = [asdict(result) for result in results]
        count = {status: sum(r.status == status for r in results) for status in ("passed", "excused", "failed")}
        verdict = "[red]FAILED[/red]" if count["failed"] else "[green]passed[/green]"
        seconds = sum(r.seconds for r in results)
        screen.print(
            f"{escape(name)}: {verdict} ({count['passed']} passed, {count['excused']} excused by a fact, "
            f"{count['failed']} failed, {seconds:.1f} s)"
        )
        shown = [r for r in results if options.verbose or r.status == "failed"]
        if shown:
            rows = [(r.check, options_text(r.options), r.status, r.message or r.reason) for r in shown]
            screen.print(table("check", "options", "status", "why", rows=rows))
    if options.json:
        emit(everything)
    return 7 if any(r["status"] == "failed" for results in everything.values() for r in results) else 0


def _results(kind: str, spec: str, device: str) -> "list[CheckResult]":
    """Of a mechanism, or of a part."""
    from regard.testing import check, check_part

    if kind == MECHANISM:
        return check(spec, device=device)
    parsed = specs.parse(spec)
    if kind == PRESET:
        raise ConfigError(f"{parsed.name} is a preset, a whole model: check its mechanism and parts by their names")
    if parsed.options:
        raise ConfigError(f"{kind} {parsed.name} is checked with its own samples of options; leave the options out")
    return check_part(specs.load(kind, parsed.name, specs.files(PACKAGES[kind])), device=device)


def options_text(options: Mapping[str, object]) -> str:
    """Options as they stand in a specification."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
