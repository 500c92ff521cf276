"""Nothing that regard opens can run code: no module calls what could, but in the places below, with their reasons."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "runpy", "code", "imp"}
"""that read what runs, or run it"""
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system",
    "os.popen",
    "os.execv",
    "os.execve",
    "os.execvp",
    "os.execvpe",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.spawnv",
    "os.spawnvp",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "torch.package.PackageImporter",
    "torch.ops.load_library",
    "torch.utils.cpp_extension.load",
    "torch.utils.cpp_extension.load_inline",
    "torch.distributed.checkpoint.load",
    "torch.distributed.broadcast_object_list",
    "torch.distributed.all_gather_object",
    "torch.distributed.gather_object",
    "torch.distributed.scatter_object_list",
    "torch.distributed.recv_object_list",
    "torch.serialization.load",
    "ctypes.CDLL",
    "importlib.import_module",
    "importlib.util.spec_from_file_location",
    "numpy.load",
    "numpy.lib.format.read_array",
    "numpy.lib.npyio.NpzFile",
    "pandas.read_pickle",
}

REASONS = {
    ("regard/__init__.py", "importlib.import_module"): "a value of its own table of homes",
    ("regard_lab/tasks/__init__.py", "importlib.import_module"): "a value of its own table of homes",
    ("regard_lab/training/__init__.py", "importlib.import_module"): "a value of its own table of homes",
    ("regard/models/__init__.py", "importlib.import_module"): "a value of its own table of homes",
    ("regard/integrations/architectures/__init__.py", "importlib.import_module"): "a file of this folder",
    ("regard/specs.py", "importlib.import_module"): "a file of the catalog",
    ("regard/cli/main.py", "importlib.import_module"): "a file of this folder",
    ("regard/cli/completion.py", "importlib.import_module"): "a file of this folder",
    ("regard_lab/tasks/tables.py", "importlib.import_module"): "pyarrow, which may be absent",
    ("regard_lab/tasks/scoring.py", "importlib.import_module"): "sacrebleu or sklearn, which may be absent",
    (
        "regard_lab/tasks/functions.py",
        "importlib.import_module",
    ): "modules of the standard library, whose source is a task",
    (
        "regard/files/consent.py",
        "importlib.import_module",
    ): "module:Class that the user typed or agreed to: it asks for that",
    ("regard_lab/training/environment.py", "subprocess.run"): "git, for the revision of its own source",
    ("regard_lab/benchmark/worker.py", "subprocess.Popen"): "this Python with a module of regard",
    (
        "regard/text/confined.py",
        "subprocess.run",
    ): "this Python with this file, in which a template or tokenizer is tried",
    ("regard/distributed/group.py", "torch.distributed.all_gather_object"): "between the processes of one run; no file",
    (
        "regard/distributed/sequence/parts.py",
        "torch.distributed.recv_object_list",
    ): "between the processes of one run; no file",
}


def named(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Every name and every attribute of one that is read, called or not, by its full name where imports say it."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                names[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            parts, at = [], node
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name):
                full = ".".join([names.get(at.id, at.id), *reversed(parts)])
                yield full.removeprefix("builtins."), node


def imported(nodes: list[ast.AST]) -> set[str]:
    """The first parts of the names of all modules that are imported, wherever."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _says(call: ast.Call, name: str, value: bool) -> bool:
    return any(each.arg == name and isinstance(each.value, ast.Constant) and each.value.value is value
               for each in call.keywords)  # fmt: skip


def executing(source: str) -> set[str]:
    """What in a module could run what it reads."""
    nodes = list(ast.walk(ast.parse(source)))
    found = imported(nodes) & MODULES
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for name, node in named(nodes):
        if name in BUILTINS | CALLS and not (id(node) in calls and _safe(name, calls[id(node)])):
            found.add(name)
    return found


def _safe(name: str, call: ast.Call) -> bool:
    """Whether a call of it is written so that it cannot run what it reads."""
    return {
        "importlib.import_module": bool(call.args) and isinstance(call.args[0], ast.Constant),
        "torch.load": _says(call, "weights_only", True),
        "numpy.load": _says(call, "allow_pickle", False),
        "numpy.lib.format.read_array": _says(call, "allow_pickle", False),
    }.get(name, False)


def test_no_module_runs_what_it_reads():
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        found |= {(place, name) for name in executing(path.read_text(encoding="utf-8"))}
    unknown = sorted(found - REASONS.keys())
    assert not unknown, "these can run code; do it another way, or give the reason in REASONS"
    assert not REASONS.keys() - found, "these reasons have no place any more"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "pickle"),
        ("def f():\n    from yaml import load", "yaml"),
        ("eval('1')", "eval"),
        ("exec(text)", "exec"),
        ("import torch as t\nt.load(path)", "torch.load"),
        ("import torch\ntorch.load(path, weights_only=False)", "torch.load"),
        ("from torch import load\nload(path)", "torch.load"),
        ("import numpy as np\nnp.load(path)", "numpy.load"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "numpy.load"),
        ("from importlib import import_module as get\nget(name)", "importlib.import_module"),
        ("import subprocess\nsubprocess.run(words)", "subprocess.run"),
        ("from os import system\nsystem('x')", "os.system"),
        ("list(map(eval, texts))", "eval"),
        ("import torch\nread = torch.load\nread(path, weights_only=True)", "torch.load"),
        ("import torch\nopened(path, reader=torch.load)", "torch.load"),
        ("import builtins\nbuiltins.exec(text)", "exec"),
        ("import torch.distributed as dist\ndist.recv_object_list(found, 0)", "torch.distributed.recv_object_list"),
        ("import torch\ntorch.serialization.load(path)", "torch.serialization.load"),
    ],
)
def test_what_could_run_code_is_seen(source, name):
    assert executing(source) == {name}


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import re\nre.compile('x')",
        "import torch\ntorch.compile(model)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import importlib\nimportlib.import_module('faiss')",
        "import ast\nast.literal_eval('1')",
    ],
)
def test_what_cannot_is_left_alone(source):
    assert executing(source) == set()
