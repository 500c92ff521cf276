"""`regard bench --capacity`: the table, and the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli._output import console, emit, table

if TYPE_CHECKING:
    from regard.cli.bench import Options

NOTE = (
    "Share of stored pairs whose value is the nearest to the output when their key is asked for, ± a standard error "
    "over trials; untrained, random unit keys and values of width {dim}. Every mechanism at the best of the sharpness "
    "that was tried, since a projection before it could learn that. State: of one head in float32."
)


def run(options: "Options") -> int:
    """Measure, show, write; 7 if a control missed."""
    from regard.benchmark import capacity
    from regard.training.files import write_json

    plan = capacity.Plan(
        specs=options.specs or capacity.SPECS,
        pairs=(8, 32, 128) if options.pairs is None else options.pairs,
        sharpness=options.sharpness,
        dim=32 if options.key_dim is None else options.key_dim,
        trials=options.trials,
        seed=options.seed,
    )
    screen, told = console(machine=options.json), console(machine=True)
    results = capacity.measure(plan, tell=lambda line: told.print(line, markup=False))
    columns = ("mechanism", "state bytes", "sharpness", *(f"{pairs} pairs" for pairs in plan.pairs))
    screen.print(table(*columns, rows=[_shown(spec, results) for spec in plan.specs]))
    screen.print(NOTE.format(dim=plan.dim), markup=False)
    missed = [one for one in results["controls"] if not one["reached"]]
    for one in missed:
        screen.print(f"CONTROL MISSED: {one['title']}: {one['value']}, not {one['expected']}", markup=False)
    if options.out is not None:
        write_json(Path(options.out) / "results.json", results)
        screen.print(f"Every number: {Path(options.out) / 'results.json'}", markup=False)
    if options.json:
        emit(results)
    return 7 if missed else 0


def _shown(spec: str, results: Mapping[str, Any]) -> tuple[str, ...]:
    """A mechanism at its best sharpness."""
    best = results["best"][spec]
    rows = [row for row in results["rows"] if (row["spec"], row["sharpness"]) == (spec, best)]
    sizes = [f"{row['state_bytes']:,}" for row in rows if row["state_bytes"] is not None]
    return (
        spec,
        " to ".join(dict.fromkeys((*sizes[:1], *sizes[-1:]))),
        f"{best:g}",
        *(f"{row['recall']:.3f} ± {row['standard_error']:.1g}" for row in rows),
    )
