"""`regard bench --retrieval`: the table, and the files."""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli._output import console, emit, table

if TYPE_CHECKING:
    from regard.cli.bench import Options


def run(options: "Options") -> int:
    """Train, show, write; 7 if a control missed."""
    from regard.benchmark import retrieval
    from regard.report import retrieval as page
    from regard.training.files import write_json

    plan = retrieval.Plan(
        specs=options.specs or None,
        pairs=(4,) if options.pairs is None else options.pairs,
        dim=32 if options.key_dim is None else options.key_dim,
        steps=options.steps,
        rates=options.rates,
        seeds=tuple(range(options.seed, options.seed + options.trainings)),
    )
    screen, told = console(machine=options.json), console(machine=True)
    results = retrieval.measure(plan, tell=lambda line: told.print(line, markup=False))
    screen.print(table(*page.columns(results), rows=page.rows(results)))
    for line in page.notes(results):
        screen.print(line, markup=False)
    if options.out is not None:
        write_json(Path(options.out) / "results.json", results)
        page.write(results, Path(options.out) / "retrieval.html")
        screen.print(f"A plot and every number: {Path(options.out) / 'retrieval.html'}", markup=False)
    if options.json:
        emit(results)
    return 0 if all(one["reached"] for one in results["controls"]) else 7
