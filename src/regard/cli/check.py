"""Check that a mechanism keeps every promise of its kind; exits 7 if one is broken."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from regard import catalog
from regard.cli._kinds import MECHANISM
from regard.cli._options import words
from regard.cli._output import emit, say, table
from regard.cli.info import find
from regard.core.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """The mechanisms to check."""

    names: tuple[str, ...] = words(())
    """names from `regard list`, specifications such as 'local(window=3)', or `module:Class`; `all` for the
    mechanisms of the catalog"""
    json: bool = False
    """machine output on stdout"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    """where the mechanisms run; auto: cuda, else mps, else cpu"""
    verbose: bool = False
    """print passed and excused checks too"""


def run(options: Options) -> int:
    """Run the conformance suite."""
    if not options.names:
        raise ConfigError("name what to check: names from `regard list`, module:Class, or all")
    names = catalog.names() if options.names == ("all",) else list(options.names)
    found = {name: _mechanism(name) for name in names}  # refuses what is not there before torch is imported
    from regard.core.device import chosen_device
    from regard.testing import check

    device = chosen_device(options.device).type
    everything = {}
    for name in names:
        results = check(found[name], device=device)
        everything[name] = [asdict(result) for result in results]
        count = {status: sum(r.status == status for r in results) for status in ("passed", "excused", "failed")}
        verdict = "FAILED" if count["failed"] else "passed"
        seconds = sum(r.seconds for r in results)
        say(
            f"{name}: {verdict} ({count['passed']} passed, {count['excused']} excused by a fact, "
            f"{count['failed']} failed, {seconds:.1f} s)",
            machine=options.json,
        )
        shown = [r for r in results if options.verbose or r.status == "failed"]
        if shown:
            rows = [(r.check, options_text(r.options), r.status, r.message or r.reason) for r in shown]
            say(table("check", "options", "status", "why", rows=rows), machine=options.json)
    if options.json:
        emit(everything)
    return 7 if any(r["status"] == "failed" for results in everything.values() for r in results) else 0


def _mechanism(name: str) -> str:
    """Its specification."""
    kind, spec = find(name)[0]
    if kind != MECHANISM:
        raise ConfigError(f"{name} is a {kind}, and regard check checks mechanisms: regard list shows them")
    return spec


def options_text(options: Mapping[str, object]) -> str:
    """Options as they stand in a specification."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
