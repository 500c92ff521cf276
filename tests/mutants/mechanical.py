"""Mechanical mutants: change one operator or constant of a mechanism's file, run the suite, list what survives.

    python -m tests.mutants.mechanical local --jobs 2
    python -m tests.mutants.mechanical lsh --module regard.engines.routed.buckets --tests tests/engines/routed
    python -m tests.mutants.mechanical softmax --module regard.core.state --tests "tests/test_state.py" --record
    python -m tests.mutants.mechanical linear --module regard.engines.sums.passes --minutes 5 --record

A survivor is a change that no check notices: look at each one. It is an equivalent program, a constant that only costs
time, or a hole in the suite. What algorithm and definition share (a default scale, a loss) the suite cannot judge; with
`--tests`, survivors of the suite must also survive the tests of the mechanism's family, where golden values are.

`--record` writes what survived into `survivors.csv` beside this file, for each module that was studied: when, at which
revision, how many changes there are, how many of them were judged and killed, and every survivor. Its last column,
written by hand, says what was found when the survivor was looked at; it stays when the module is studied again.
"""

import argparse
import ast
import contextlib
import copy
import csv
import datetime
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType
from typing import Any

import regard
from regard import catalog

SWAPS: dict[type[Any], type[Any]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
METHODS = {"amax": "amin", "amin": "amax", "tril": "triu", "exp": "sigmoid", "sum": "mean", "cumsum": "clone"}
SKIPPED = ("reference", "facts", "kept_slots", "__repr__", "extra_repr")
"""functions that are not the algorithm"""

SECONDS = 120
"""a mutant that runs longer has lost its way"""


RECORD = Path(__file__).with_name("survivors.csv")
COLUMNS = ("module", "date", "revision", "changes", "judged", "killed", "line", "change", "found")


@dataclass(frozen=True)
class Variant:
    """One change of a source text."""

    line: int
    change: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """What became of a variant: the check that killed it, or None."""

    variant: Variant
    killer: str | None


def variants(source: str) -> Iterator[Variant]:
    """Every way to change one operator, constant, condition or reduction of a mechanism's algorithm."""
    tree = ast.parse(source)
    for at, node in enumerate(_places(tree)):
        for edited in _edits(node):
            twin = copy.deepcopy(tree)
            target = next(islice(_places(twin), at, None))
            ast.fix_missing_locations(_Replace(target, edited).visit(twin))
            change = f"{ast.unparse(node)}  ->  {ast.unparse(edited)}".replace("\n", " ")
            yield Variant(getattr(node, "lineno", 0), change, ast.unparse(twin))


def changes(source: str) -> int:
    """How many variants there are."""
    return sum(1 for node in _places(ast.parse(source)) for _ in _edits(node))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _places(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions and tests inside functions, docstrings, messages, annotations and defaults excluded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _places(node)
        elif isinstance(node, ast.FunctionDef) and node.name not in SKIPPED:
            for statement in node.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    skipped = {id(node.annotation)} if isinstance(node, ast.AnnAssign) else set()
    for child in ast.iter_child_nodes(node):
        if id(child) not in skipped:
            yield from _inside(child)


def _edits(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that one expression may be changed to."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPS[type(op)](), values)
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                if type(op) in SWAPS:
                    yield ast.Compare(left, [*ops[:at], SWAPS[type(op)](), *ops[at + 1 :]], comparators)
        case ast.UnaryOp(ast.USub() | ast.Invert() | ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(float(value)):
            yield ast.Constant(2 * value if value else 1.0)
        case ast.IfExp(test, body, orelse) if not isinstance(test, ast.Compare):
            yield ast.IfExp(test, orelse, body)
        case ast.Attribute(value, name, context) if name in METHODS:
            yield ast.Attribute(value, METHODS[name], context)


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source text."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, f"<mutant of {self.module}>", "exec"), module.__dict__)


def judge(name: str, module: str, source: str, tests: str | None = None) -> str | None:
    """Run the suite, then tests, over a mechanism with one module replaced: the check that fails, or None.

    To be called in a process of its own, before that module is imported.
    """
    if module in sys.modules:
        raise ImportError(f"{module} is imported before it can be replaced")
    import torch

    torch.set_num_threads(1)
    sys.meta_path.insert(0, _Loader(module, source))
    try:
        from regard.testing.checks import check_attention

        results = check_attention(name, stop_at_failure=True)
    except Exception as error:  # a mutant may break its own import in any way
        return f"import: {type(error).__name__}"
    if results[-1].status == "failed":
        return results[-1].check
    if tests is None:
        return None
    importlib.import_module(module)  # the tests check types by an import hook, which would import it from its file
    import pytest

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        options = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        return "tests" if pytest.main([*options, *tests.split()]) else None


def _child(answer: Connection, name: str, module: str, source: str, tests: str | None) -> None:
    try:
        answer.send(judge(name, module, source, tests))
    except ImportError as error:
        answer.send(error)


def _judged(name: str, module: str, variant: Variant, tests: str | None = None) -> Outcome:
    """Judge in a process of its own, which may hang or die."""
    context = multiprocessing.get_context("forkserver")
    answer, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, name, module, variant.source, tests), daemon=True)
    process.start()
    theirs.close()
    try:
        found = answer.recv() if answer.poll(SECONDS) else "timeout"
        if isinstance(found, ImportError):
            raise found
        return Outcome(variant, found)
    except EOFError:
        return Outcome(variant, "crash")
    finally:
        process.kill()
        process.join()


def study(
    name: str,
    *,
    module: str | None = None,
    limit: int | None = None,
    minutes: float | None = None,
    jobs: int = 1,
    tests: str | None = None,
) -> list[Outcome]:
    """Judge the variants of a mechanism's file.

    Args:
        name: the mechanism whose suite runs.
        module: another module, such as `regard.engines.routed.codes`; None: the mechanism's own.
        limit: judge only so many variants, drawn with a fixed seed.
        minutes: begin none after so many; variants come in an order drawn with a fixed seed, so that what was judged
            is a sample of all.
        jobs: processes at a time.
        tests: files or folders of tests, with spaces between, that survivors of the suite must survive too.
    """
    module = own_module(name) if module is None else module
    chosen = [*variants(source_of(module).read_text(encoding="utf-8"))]
    random.Random(0).shuffle(chosen)
    until = None if minutes is None else time.monotonic() + 60 * minutes
    multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "torch.utils.flop_counter"])

    def judged(variant: Variant) -> Outcome | None:
        late = until is not None and time.monotonic() > until
        return None if late else _judged(name, module, variant, tests)

    with ThreadPool(jobs) as pool:
        outcomes = pool.map(judged, chosen[:limit], chunksize=1)
    return sorted((each for each in outcomes if each is not None), key=lambda each: each.variant.line)


def own_module(name: str) -> str:
    """The module of a mechanism."""
    return f"regard.attention.{catalog.family(name)}.{name}"


def source_of(module: str) -> Path:
    """The file of a module of regard."""
    path = Path(regard.__file__).parents[1] / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def record(module: str, outcomes: Sequence[Outcome], file: Path = RECORD) -> None:
    """Replace what is recorded of a module; what was found about a survivor stays."""
    rows = recorded(file)
    known = {row["change"]: row["found"] for row in rows if row["module"] == module}
    git = ["git", "-C", str(file.parent), "rev-parse", "--short", "HEAD"]
    survivors = [outcome.variant for outcome in outcomes if outcome.killer is None]
    study = {
        "module": module,
        "date": datetime.date.today().isoformat(),
        "revision": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "changes": str(changes(source_of(module).read_text(encoding="utf-8"))),
        "judged": str(len(outcomes)),
        "killed": str(len(outcomes) - len(survivors)),
    }
    new = [
        {**study, "line": str(each.line), "change": each.change, "found": known.get(each.change, "")}
        for each in survivors
    ]
    rows = [row for row in rows if row["module"] != module] + (
        new or [{**study, "line": "", "change": "", "found": ""}]
    )
    with file.open("w", encoding="utf-8", newline="") as out:
        writer: csv.DictWriter[str] = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["module"], int(row["line"] or 0), row["change"])))


def recorded(file: Path = RECORD) -> list[dict[str, str]]:
    """The record, a row for every survivor; a module without any has a row without a change."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.mechanical", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="mechanisms of the catalog; none: all")
    parser.add_argument("--module", help="another module, such as regard.engines.routed.codes")
    parser.add_argument("--limit", type=int, help="judge only so many variants of each")
    parser.add_argument("--minutes", type=float, help="begin no variant of a file after so many")
    parser.add_argument("--tests", help="tests that survivors must survive too; {family} and {name} are filled in")
    parser.add_argument("--record", action="store_true", help=f"write what survived to {RECORD.name}")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args(arguments)
    for name in options.names or catalog.names():
        tests = options.tests and options.tests.format(family=catalog.family(name), name=name)
        outcomes = study(
            name, module=options.module, limit=options.limit, minutes=options.minutes, jobs=options.jobs, tests=tests
        )
        survivors = [outcome.variant for outcome in outcomes if outcome.killer is None]
        print(f"{name}: {len(outcomes) - len(survivors)} of {len(outcomes)} mutants killed", flush=True)
        for variant in survivors:
            print(f"  survives, line {variant.line}: {variant.change}", flush=True)
        if options.record:
            record(options.module or own_module(name), outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
