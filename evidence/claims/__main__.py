"""Measure claims of the literature: each with a control, at least 3 seeds and a verdict that can go either way.

Without names: lists them. A claim leaves NAME.json in --out, and claims.html there shows all that the folder holds.
Exits 0 whatever the verdicts are, 7 if a control missed its known answer, and 2 if published weights that a claim reads
are not installed: the others are measured then.
"""

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from evidence import claims
from regard.cli.main import answered
from regard.core.errors import ConfigError, DataError
from regard.files.checksums import opened, sealed
from regard.files.reading import content
from regard_lab.cli._options import Json, read
from regard_lab.cli._output import console, emit, table, tell, will_write
from regard_lab.cli._threads import cpu_threads

_AGAIN = "remove it and measure the claim again, or choose another --out"


@dataclass(frozen=True)
class Options:
    """The claims to measure, and how often."""

    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """claims, or patterns such as 'dot*'; `all` for every one; none: lists them"""
    seeds: int | None = None
    """measurements of each; none: as many as a claim needs, which is 3 or more"""
    first_seed: int = 0
    """the seeds are this one and those after it: others are fresh where some have been looked at"""
    out: str = "claims"
    """folder for NAME.json and claims.html"""
    quick: bool = False
    """the small form of each: checks that the controls are reached, and is no evidence"""
    threads: int = 1
    """CPU threads"""
    json: Json = False


def run(options: Options) -> int:
    """List, or measure and write."""
    if not options.claims:
        return listed(machine=options.json)
    if options.threads < 1 or options.first_seed < 0:
        raise ConfigError(
            f"claims need at least one thread and seeds of 0 or more, got --threads {options.threads} "
            f"--first-seed {options.first_seed}"
        )
    chosen = dict.fromkeys(name for pattern in options.claims for name in matching(pattern))
    built = {name: claims.build(name, tiny=options.quick) for name in chosen}
    seeds = {name: _seeds(options, name, claim) for name, claim in built.items()}
    from evidence.claims import _page as page
    from regard.files.folders import write_json

    will_write(options.out, *(f"{name}.json" for name in built), "claims.html")
    folder, screen = Path(options.out), console(machine=options.json)
    recorded(folder)  # what cannot be shown beside the new results is refused before they are measured
    results: dict[str, dict[str, Any]] = {}
    refused: list[str] = []
    with cpu_threads(options.threads):
        for name, claim in built.items():
            tell(f"{name}: measuring {len(seeds[name])} seeds")
            try:
                result = claims.measure(claim, seeds[name], tiny=options.quick)
            except ConfigError as error:  # published weights that are not installed
                refused.append(f"{name}: {error}")
                continue
            write_json(folder / f"{name}.json", sealed(result))
            results[name] = result
            show(result, screen)
    page.write(recorded(folder), folder / "claims.html")
    if len(results) > 1:
        lines = [(result["name"], result["verdict"], f"{result['seconds']:.0f} s") for result in results.values()]
        screen.print(table("claim", "verdict", "took", rows=lines))
    screen.print(f"Plots and every number: {folder / 'claims.html'}", markup=False)
    if options.json:
        emit(results)
    if refused:
        raise ConfigError("\n".join(refused))
    return 7 if any(not one["reached"] for result in results.values() for one in result["controls"]) else 0


def _seeds(options: Options, name: str, claim: claims.Claim) -> range:
    """Of one claim; fewer than it needs are refused, so that nothing is measured in vain."""
    least = claims.LEAST_SEEDS if options.quick else claim.least_seeds
    count = least if options.seeds is None else options.seeds
    if count < least:
        raise ConfigError(f"claim {name} needs at least {least} seeds, got --seeds {count}")
    return range(options.first_seed, options.first_seed + count)


def matching(pattern: str) -> list[str]:
    """The claims that a word on the command line means.

    Raises:
        ConfigError: none.
    """
    names = claims.names("*" if pattern == "all" else pattern)
    if not names:
        claims.outline(pattern)  # says which name is nearest
    return names


def listed(*, machine: bool) -> int:
    """Every claim: what the literature says, and who."""
    outlines = {name: claims.outline(name) for name in claims.names()}
    if machine:
        emit({name: vars(about) for name, about in outlines.items()})
        return 0
    screen = console()
    rows = [(name, about.title, about.source) for name, about in outlines.items()]
    screen.print(table("claim", "title", "source", rows=rows))
    screen.print("Measure: python -m evidence.claims NAME..., or all", markup=False)
    return 0


def show(results: Mapping[str, Any], screen: Any) -> None:
    """One claim: words, controls, findings, verdict."""
    from evidence.claims._page import COLUMNS, notes, rows, verdict

    screen.print(f"\n{results['title']}", markup=False, style="bold")
    for label, key in (("literature", "says"), ("source", "source"), ("control", "control"), ("measured", "measures")):
        text = textwrap.fill(results[key], 140, initial_indent=f"  {label:10}  ", subsequent_indent=" " * 14)
        screen.print(text, markup=False)
    screen.print(table(*COLUMNS, rows=rows(results)))
    small = " (small form: no evidence)" if results["tiny"] else ""
    screen.print(f"  {verdict(results).upper()}{small}: {results['reason']}", markup=False)
    for note in notes(results):
        screen.print(textwrap.fill(note, 140, initial_indent="  ", subsequent_indent="  "), markup=False)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The results of every claim that a folder holds.

    Raises:
        DataError: a file of a claim's name that holds something else, or lacks a part.
    """
    from jinja2 import UndefinedError

    from evidence.claims._page import render

    results = []
    for path in (folder / f"{name}.json" for name in claims.names()):
        if not path.exists():
            continue
        try:
            result = opened(content(path))
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; {_AGAIN}") from None
        except ValueError as error:
            raise DataError(f"{path} holds no results of a claim that can be believed ({error}); {_AGAIN}") from error
        if result.get("format") != claims.FORMAT:
            raise DataError(f"{path} holds no results of a claim that this version of regard reads; {_AGAIN}")
        if result.get("name") != path.stem:
            raise DataError(f"{path} holds results of another claim, {result.get('name')!r}; {_AGAIN}")
        try:
            render([result])
        except (LookupError, TypeError, AttributeError, ValueError, UndefinedError) as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{path} lacks a part of the results that its page shows ({why}); {_AGAIN}") from error
        results.append(result)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return answered("python -m evidence.claims", lambda: run(read(Options, words, verb="claims", description=__doc__)))


if __name__ == "__main__":
    sys.exit(main())
