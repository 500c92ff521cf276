"""What must be read to know one mechanism fully, and how many files a call walks through.

    python evidence/benchmarks/reading.py                        # this tree
    python evidence/benchmarks/reading.py ../before/src          # another one
    python evidence/benchmarks/reading.py --files lsh            # which files are counted

Lines to read: those of the mechanism's file and of every file of regard that it imports, directly or through others, in
all rooms together. Of an engine its contract counts, the text at the head of its package, and nothing behind it.
Followed are imports at the top of a file, not those inside functions nor those for type checkers. Left out are the
words that every mechanism shares and that compute nothing of it (`VOCABULARY`: errors, facts, the data of a bias, the
reader of written patterns), and what another family keeps to itself.

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
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

VOCABULARY = ("errors", "info", "bias", "pattern_text", "text")
"""last parts of names of modules"""
ENGINES = "regard.engines."
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


def imports(body: Sequence[ast.stmt], modules: Collection[str]) -> Iterator[str]:
    """Those of the modules that a file imports at its top; of `from package import module` the module alone."""
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                inner = [f"{module}.{alias.name}" for alias in node.names]
                yield from (name for name in (one if one in modules else module for one in inner) if name in modules)
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name in modules)
            case ast.ImportFrom():
                raise ValueError(f"line {node.lineno}: relative imports are not followed")
            case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from imports([*node.body, *node.orelse], modules)
            case ast.Try():
                yield from imports(node.body, modules)


class Tree:
    """The files of regard below a source folder."""

    def __init__(self, source: Path) -> None:
        paths = {".".join(p.relative_to(source).with_suffix("").parts): p for p in (source / "regard").rglob("*.py")}
        self.modules = {name.removesuffix(".__init__"): path for name, path in sorted(paths.items())}
        texts = {name: path.read_text(encoding="utf-8") for name, path in self.modules.items()}
        self.lines = {name: len(text.splitlines()) for name, text in texts.items()}
        self.contracts = {
            name: len((ast.get_docstring(ast.parse(text)) or "").splitlines())
            for name, text in texts.items()
            if name.startswith(ENGINES) and name.count(".") == 2
        }
        families = [name for name in self.modules if name.startswith("regard.attention.") and name.count(".") == 3]
        self.mechanisms = {name.rpartition(".")[2]: name for name in families if "._" not in name}
        """name -> module, as the catalog finds them: every public file of a family"""

    @cache  # noqa: B019  # there is one tree
    def imported(self, name: str) -> list[str]:
        return list(imports(ast.parse(self.modules[name].read_text(encoding="utf-8")).body, self.modules))

    def to_read(self, module: str, left_out: Collection[str]) -> list[str]:
        """The module of a mechanism, and those that it imports, directly or through others."""
        others = {one.rpartition(".")[0] for one in self.mechanisms.values()} - {module.rpartition(".")[0]}
        seen, queue = {module}, [module]
        while queue:
            for name in self.imported(queue.pop()):
                if name.startswith(ENGINES):
                    seen.add(".".join(name.split(".")[:3]))
                    continue
                room, _, last = name.rpartition(".")
                private = room in others and last.startswith("_")
                if name not in seen and not private and last not in left_out:
                    seen.add(name)
                    queue.append(name)
        return sorted(seen)

    def count(self, name: str) -> int:
        """Lines to read of a module: of an engine those of its contract."""
        return self.contracts.get(name, self.lines[name])


def walked(source: Path) -> list[tuple[str, list[str], list[str]]]:
    """(mechanism, files in its first call, files in the next) in a process that imports this tree."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROBE, *WALKED]
    shown = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [tuple(json.loads(line)) for line in shown.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", default=Path(__file__).parents[2] / "src")
    parser.add_argument("--files", nargs="+", default=[], metavar="NAME", help="mechanisms whose files are named")
    parser.add_argument("--leave-out", nargs="*", default=VOCABULARY, metavar="MODULE", help="last parts of names")
    options = parser.parse_args()
    source = options.source.resolve()
    tree = Tree(source)
    counted = {name: tree.to_read(module, options.leave_out) for name, module in tree.mechanisms.items()}
    read = {name: sum(map(tree.count, modules)) for name, modules in counted.items()}
    own = {name: tree.lines[module] for name, module in tree.mechanisms.items()}
    print(f"{'mechanism':20} {'its file':>8} {'to read':>8} {'files':>6}")
    for name in sorted(read, key=lambda name: -read[name]):
        print(f"{name:20} {own[name]:8,} {read[name]:8,} {len(counted[name]):6}")
    for name in options.files:
        print(f"{name}: " + ", ".join(f"{one.removeprefix('regard.')} {tree.count(one)}" for one in counted[name]))
    middle, longest = statistics.median(own.values()), max(own.values())
    print(f"{len(own)} mechanisms: median of their files {middle:g} lines, the longest {longest}")
    print(f"median to read {statistics.median(read.values()):,g} lines")
    shared = sorted(set.intersection(*(set(modules) for modules in counted.values())))
    once = sum(map(tree.count, shared))
    print(f"{once:,} of them in every count, read once: {', '.join(name.partition('.')[2] for name in shared)}")
    above = [f"{name.partition('.')[2]} {lines}" for name, lines in tree.lines.items() if lines > LONGEST]
    print(f"files above {LONGEST} lines: {', '.join(above) or 'none'}")
    for name, first, again in walked(source):
        print(f"a causal forward call of {name} walks {len(first)} files, the next {len(again)}: {', '.join(again)}")
        if only := sorted(set(first) - set(again)):
            print(f"  the first alone: {', '.join(only)}")


if __name__ == "__main__":
    main()
