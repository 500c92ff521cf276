"""One name in three places: the file, the class, the catalog. And every name that is promised exists."""

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import catalog, memory, position, specs
from regard.core.attention import Attention
from regard.core.info import Heads
from regard.core.mechanism import Mechanism
from regard.core.options import registered_name
from regard.models import presets

SOURCE = Path(regard.__file__).parent


@pytest.mark.parametrize("name", catalog.names())
def test_file_class_and_registered_name(name):
    cls, options = catalog.resolve(name)
    assert cls.__name__ == specs.camel(name)
    assert registered_name(cls) == name
    assert Path(inspect.getfile(cls)) == SOURCE / "attention" / catalog.family(name) / f"{name}.py"
    assert issubclass(cls, Attention)
    assert getattr(cls, "__final__", False), "mechanisms are final"
    assert options == {}
    public = [
        c for c in vars(sys.modules[cls.__module__]).values() if inspect.isclass(c) and c.__module__ == cls.__module__
    ]
    assert [c for c in public if issubclass(c, Attention)] == [cls], "one file is one mechanism"


@pytest.mark.parametrize("name", catalog.names())
def test_facts_read_without_importing_are_those_of_the_class(name):
    cls, _ = catalog.resolve(name)
    assert catalog.outline(name) == cls.default_info == catalog.describe(name)
    assert catalog.docstring(name) == inspect.getdoc(cls)


def declared(cls):
    """The annotated attributes of a class body, each with the docstring below it."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(cls))).body)
    for node, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            yield node.target.id, below.value.value if told else ""


@pytest.mark.parametrize("name", catalog.names())
def test_every_option_is_described_once_where_it_is_declared(name):
    cls, _ = catalog.resolve(name)
    described = {
        option: text
        for base in reversed(cls.__mro__[:-1])
        if issubclass(base, Mechanism)
        for option, text in declared(base)
    }
    assert [option for option in cls.defaults if not described[option].strip()] == []
    _, *parameters = inspect.signature(cls).parameters.values()
    assert all(each.annotation not in (each.empty, Any) for each in parameters)
    assert "Args:" not in (inspect.getdoc(cls) or ""), "options have their docstrings, and heads are everybody's"


def test_no_file_of_a_family_is_left_out():
    files = {path.stem for path in (SOURCE / "attention").glob("*/*.py") if not path.stem.startswith("_")}
    assert files == set(catalog.names())


@pytest.mark.parametrize("name", position.names())
def test_every_position_loads(name):
    cls = position.position_class(name)
    assert cls.__name__ == specs.camel(name)
    assert cls.title
    heads = Heads(count=2, key_dim=8, causal=True, max_length=16)
    assert isinstance(position.build_position(name, heads, 16), cls)


@pytest.mark.parametrize("name", memory.names())
def test_every_memory_loads(name):
    heads = Heads(count=2, key_dim=8, causal=True)
    assert type(memory.build_memory(name, heads, 16)).__name__ == specs.camel(name)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_loads(name):
    assert presets.function(name).__name__ == name
    assert isinstance(presets.build(name), presets.kind(name))


@pytest.mark.parametrize("name", regard.__all__)
def test_every_public_name_resolves(name):
    value = getattr(regard, name)
    assert name == "__version__" or callable(value)


def test_dir_shows_what_is_public_and_nothing_else():
    importlib.import_module("regard.cli.list")  # leaves submodules in the package
    assert dir(regard) == sorted(regard.__all__)


def test_type_checkers_see_the_same_names():
    """The names under TYPE_CHECKING are those that are imported on first use, from the same homes."""
    tree = ast.parse(Path(regard.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == regard._HOMES
    assert sorted(["__version__", *seen]) == sorted(regard.__all__)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'softmax'"):
        regard.softmax


def test_importing_regard_imports_nothing_heavy():
    code = (
        "import sys, regard; regard.ConfigError; print(sorted({'torch', 'numpy', 'rich', 'tyro'} & set(sys.modules)))"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE.parent)}, text=True)
    assert shown == "[]\n"


ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "evidence" / "claims").rglob("*.py")]


def modules() -> list[str]:
    places = (path.relative_to(ROOT).with_suffix("").parts for path in FILES if path.stem != "__init__")
    return sorted(".".join(place[place[0] == "src" :]) for place in places)


def test_every_module_imports():
    for module in modules():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if missing.name != "triton" or not module.startswith("regard.engines.gpu."):
                raise


@pytest.mark.parametrize("word", ["utils", "common", "helpers", "misc"])
def test_no_drawer_for_odds_and_ends(word):
    assert not [module for module in modules() if module.rpartition(".")[2] == word]


def test_files_are_short():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in FILES}
    assert not {name for name, length in lengths.items() if length > 400}
