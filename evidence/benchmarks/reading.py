"""What must be read to know one mechanism fully, how long files are, and how many files a call walks through.

    python evidence/benchmarks/reading.py                        # this tree
    python evidence/benchmarks/reading.py ../before/src          # another one
    python evidence/benchmarks/reading.py --files lsh            # which files are counted

Lines to read: those of the mechanism's file and of every file of regard that it imports, directly or through others, in
all rooms together. Followed are imports at the top of a file; not those inside functions, which are other ways to do
the same (a GPU's engine), nor those for type checkers. Left out are the words that every mechanism shares and that
compute nothing of it (`VOCABULARY`: errors, facts, the data of a bias, the reader of written patterns), and what
another family keeps to itself. At commit a9ff879 that is 1,353 lines for lsh, 2,495 performer, 2,490 linear, 3,036
local and 3,593 bigbird, which had been counted before as 1,350, 2,430, 2,490, 3,040 and 3,600. `used` counts only the
definitions that the mechanism reaches by name (vocabulary included), with what is registered with a counted definition.

Files walked: those whose functions run in one causal forward call without gradients, on (1, 4, 300, 16): in the first
call, which may lay something out, and in the next.
"""

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

VOCABULARY = ("errors", "info", "bias", "pattern_text", "text")
"""last parts of names of modules, before they moved and after"""
LONGEST = 400
WALKED = ("softmax", "linear", "local")
PROBE = """
import json, sys
from pathlib import Path
import torch
import regard
root = Path(regard.__file__).parent
torch.set_num_threads(1)

def walked(call):
    found = set()
    def see(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(x).relative_to(root)) for x in found if Path(x).is_relative_to(root))

q, k, v = torch.randn(3, 1, 4, 300, 16)
for name in sys.argv[1:]:
    mechanism = regard.build(name, regard.Heads(count=4, key_dim=16, causal=True)).eval()
    with torch.no_grad():
        print(json.dumps([name, walked(lambda: mechanism(q, k, v)), walked(lambda: mechanism(q, k, v))]))
"""


@dataclass
class File:
    """A module's text, and what it imports at its top."""

    name: str
    path: Path
    modules: Mapping[str, Path]
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    """name -> the statements that define it; "" -> expressions that run when the module is imported"""
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """name here -> module, and the name there (None: the module itself)"""

    def __post_init__(self) -> None:
        self.text = self.path.read_text(encoding="utf-8")
        self._enter(ast.parse(self.text).body)

    @cached_property
    def length(self) -> int:
        return len(self.text.splitlines())

    def _enter(self, body: Sequence[ast.stmt]) -> None:
        documented: ast.stmt | None = None
        for node in body:
            match node:
                case ast.ImportFrom(module=str(module), level=0):
                    for alias in node.names:
                        inner = f"{module}.{alias.name}"
                        there = (inner, None) if inner in self.modules else (module, alias.name)
                        if there[0] in self.modules:
                            self.imported[alias.asname or alias.name] = there
                case ast.ImportFrom():
                    raise ValueError(f"{self.path}:{node.lineno}: relative imports are not followed")
                case ast.Import():
                    for alias in node.names:
                        if alias.name in self.modules:
                            self.imported[alias.asname or alias.name] = (alias.name, None)
                case ast.FunctionDef() | ast.ClassDef():
                    self.defined.setdefault(node.name, []).append(node)
                case ast.Assign() | ast.AnnAssign():
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for name in {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}:
                        self.defined.setdefault(name, []).append(node)
                    documented = node
                    continue
                case ast.Expr(value=ast.Constant()) if documented is not None:
                    for statements in self.defined.values():
                        if statements[-1] is documented:
                            statements.append(node)
                case ast.Expr(value=ast.Call()):
                    self.defined.setdefault("", []).append(node)
                case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                    self._enter([*node.body, *node.orelse])
                case ast.Try():
                    self._enter(node.body)
            documented = None


class Tree:
    """The files of regard below a source folder."""

    def __init__(self, source: Path) -> None:
        self.root = source / "regard"
        paths = {".".join(p.relative_to(source).with_suffix("").parts): p for p in sorted(self.root.rglob("*.py"))}
        self.modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
        self._files: dict[str, File] = {}

    def file(self, name: str) -> File:
        if name not in self._files:
            self._files[name] = File(name, self.modules[name], self.modules)
        return self._files[name]

    def mechanisms(self) -> dict[str, str]:
        """Name -> module, as the catalog finds them: every public file of a family."""
        found: dict[str, str] = {}
        for name, path in self.modules.items():
            parts = name.split(".")
            if len(parts) == 4 and parts[1] == "attention" and path.stem != "__init__" and parts[3][0] != "_":
                found[parts[3]] = name
        return found

    def to_read(self, module: str, left_out: Collection[str]) -> list[File]:
        """The file of a mechanism, and those that it imports, directly or through others."""
        others = {mechanism.rpartition(".")[0] for mechanism in self.mechanisms().values()} - {
            module.rpartition(".")[0]
        }
        seen, queue = {module}, [module]
        while queue:
            for name, _ in self.file(queue.pop()).imported.values():
                room, _, last = name.rpartition(".")
                private = room in others and last.startswith("_")
                if name not in seen and not private and last not in left_out:
                    seen.add(name)
                    queue.append(name)
        return [self.file(name) for name in sorted(seen)]

    def used(self, module: str) -> int:
        """Lines of the mechanism's file, and of the definitions elsewhere that it reaches by name."""
        reached: set[tuple[str, str]] = set()
        queue = [(module, name) for name in self.file(module).defined]
        while queue:
            while queue:
                queue += self._follow(queue.pop(), reached)
            queue = list(self._registered(reached))
        lines: dict[str, set[int]] = {}
        for name, definition in reached:
            for node in self.file(name).defined[definition]:
                lines.setdefault(name, set()).update(range(first_line(node), (node.end_lineno or node.lineno) + 1))
        return self.file(module).length + sum(len(own) for name, own in lines.items() if name != module)

    def _follow(self, at: tuple[str, str], reached: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        name, definition = at
        file = self.file(name)
        if definition not in file.defined:
            there, what = file.imported.get(definition, ("", None))
            if what is not None:
                yield there, what
            return
        if at in reached:
            return
        reached.add(at)
        for node in (x for statement in file.defined[definition] for x in ast.walk(statement)):
            match node:
                case ast.Name(id=word) if word in file.defined:
                    yield name, word
                case ast.Name(id=word) if word in file.imported and file.imported[word][1] is not None:
                    yield file.imported[word][0], str(file.imported[word][1])
                case ast.Attribute(value=ast.Name(id=word), attr=what) if file.imported.get(word, ("", ""))[1] is None:
                    yield file.imported[word][0], what

    def _registered(self, reached: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """What no name leads to: functions whose decorator, and calls whose arguments, are reached."""
        for name in {name for name, _ in reached}:
            file, own = self.file(name), {definition for other, definition in reached if other == name}
            for definition, statements in file.defined.items():
                wanted: list[ast.AST] = []
                for node in statements:
                    wanted += node.decorator_list if isinstance(node, ast.FunctionDef) else []
                    wanted += [node] if not definition else []
                words = {x.id for node in wanted for x in ast.walk(node) if isinstance(x, ast.Name)}
                if words & own and definition not in own:
                    yield name, definition


def first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(one.lineno for one in decorators)])


def walked(source: Path) -> list[tuple[str, list[str], list[str]]]:
    """(mechanism, files in its first call, files in the next) in a process that imports this tree."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROBE, *WALKED]
    shown = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [tuple(json.loads(line)) for line in shown.splitlines()]


def totals(tree: Tree, source: Path) -> None:
    """Lines of the package, and of the broken variants that test the tests, in the package or beside it."""
    lengths = {path: tree.file(name).length for name, path in tree.modules.items()}
    broken = {path for path in lengths if path.stem.lstrip("_").split("_")[0] in ("mutants", "toys")}
    beside = source.parent / "tests" / "mutants"
    moved = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in beside.rglob("*.py"))
    inside = sum(lengths[path] for path in broken)
    print(f"src: {sum(lengths.values()):,} lines in {len(lengths)} files, {inside:,} of them mutants and toys")
    print(f"tests/mutants: {moved:,} lines")
    above = {path: length for path, length in lengths.items() if length > LONGEST}
    shown = [f"{path.relative_to(tree.root)} {length}" for path, length in above.items()]
    print(f"files above {LONGEST} lines: {', '.join(shown) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=Path(__file__).parents[2] / "src")
    parser.add_argument("--files", nargs="+", default=[], metavar="NAME", help="mechanisms whose files are named")
    parser.add_argument("--leave-out", nargs="*", default=VOCABULARY, metavar="MODULE", help="last parts of names")
    options = parser.parse_args()
    source = options.source.resolve()
    tree = Tree(source)
    mechanisms = tree.mechanisms()
    counted = {name: tree.to_read(module, options.leave_out) for name, module in mechanisms.items()}
    print(f"{'mechanism':20} {'its file':>8} {'to read':>8} {'files':>6} {'used':>6}")
    for name, files in sorted(counted.items(), key=lambda pair: -sum(file.length for file in pair[1])):
        own, lines = tree.file(mechanisms[name]).length, sum(file.length for file in files)
        print(f"{name:20} {own:8,} {lines:8,} {len(files):6} {tree.used(mechanisms[name]):6,}")
    for name in options.files:
        print(f"{name}: " + ", ".join(f"{file.name.removeprefix('regard.')} {file.length}" for file in counted[name]))
    own = [tree.file(module).length for module in mechanisms.values()]
    read = [sum(file.length for file in files) for files in counted.values()]
    print(f"{len(own)} mechanisms: median of their files {statistics.median(own):g} lines, the longest {max(own)}")
    print(f"median to read {statistics.median(read):,g} lines")
    shared = set.intersection(*({file.name for file in files} for files in counted.values()))
    once = sum(tree.file(name).length for name in shared)
    print(f"{once:,} of them in every count, read once: {', '.join(sorted(name.partition('.')[2] for name in shared))}")
    totals(tree, source)
    for name, first, again in walked(source):
        print(f"a causal forward call of {name} walks {len(first)} files, the next {len(again)}: {', '.join(again)}")
        if only := sorted(set(first) - set(again)):
            print(f"  the first alone: {', '.join(only)}")


if __name__ == "__main__":
    main()
