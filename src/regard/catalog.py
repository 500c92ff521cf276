"""Every mechanism by name: the file name is the registered name, and nothing is listed by hand."""

import ast
import fnmatch
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import specs
from regard.core.errors import ConfigError, UnsupportedError, listed, nearest
from regard.core.info import Heads, Info, Input, Supports
from regard.core.types_of import typed
from regard.files import consent

if TYPE_CHECKING:
    from regard.core.attention import Attention

FAMILIES = "regard.attention"
_registered: "dict[str, type[Attention]]" = {}


@cache
def _files() -> Mapping[str, str]:
    return {name: module for name, module in specs.files(FAMILIES).items() if module.count(".") == 3}


@typed
def names(pattern: str = "*", supports: Iterable[str] = ()) -> list[str]:
    """Registered names, sorted by family and name.

    Args:
        pattern: shell-style pattern on the name.
        supports: capabilities that must all be present, as named in `Supports`.

    Raises:
        ConfigError: an unknown capability, or one that is in no list.

    Example:
        >>> names("lin*")
        ['linear', 'linformer']
    """
    if isinstance(supports, str | bytes):
        raise ConfigError(f"supports is a list of capabilities; write supports=[{supports!r}]")
    wanted = tuple(supports)
    known = Supports.__dataclass_fields__
    for capability in wanted:
        if str(capability) not in known:
            raise ConfigError(f"unknown capability {capability!r}: {nearest(str(capability), known)}")
    every = [*sorted(_files(), key=lambda name: (family(name), name)), *sorted(_registered)]
    return [
        name
        for name in every
        if fnmatch.fnmatchcase(name, pattern) and all(getattr(outline(name).supports, c) for c in wanted)
    ]


def family(name: str) -> str:
    """The family of a registered name: dense, sparse, routed, kernel, lowrank, synthesized, or the module of a
    registered third-party class.
    """
    if name in _registered:
        return _registered[name].__module__
    return _file(name).split(".")[2]


def _file(name: str) -> str:
    known = _files()
    if name not in known:
        raise ConfigError(f"unknown mechanism {name!r}: {meant(name)}")
    return known[name]


@cache
def _told() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("mechanisms.toml").read_text(encoding="utf-8"))


def title(name: str) -> str:
    """The title of a registered name, without importing it."""
    if name in _registered:
        return _registered[name].default_info.title
    return re.findall(r'\btitle="(.*?)"', source(name))[0]


def search(words: str) -> list[str]:
    """Mechanisms whose name, title or alias is these words; if there is none, those whose names or line in Chinese
    (`mechanisms.toml`) contain them.

    Example:
        >>> search("linear attention"), search("sliding window")[0], search("nadaraya")
        (['linear'], 'local', ['gaussian'])
    """

    def plain(text: str) -> str:
        return re.sub(r"[\s_-]+", " ", text).strip().casefold()

    wanted, exact, loose = plain(words), list[tuple[int, str]](), list[tuple[int, str]]()
    for name in names() if wanted else ():
        told = _told().get(name, {"also": (), "zh": ""})
        called = [plain(text) for text in (name, title(name), *told["also"])]
        if wanted in called:
            exact.append((called.index(wanted), name))
        elif within := [len(text) for text in (*called, plain(told["zh"])) if wanted in text]:
            loose.append((min(within), name))
    return [name for _, name in sorted(exact) or sorted(loose)]


def meant(words: str) -> str:
    """The end of a message about an unknown mechanism: those that the words stand for, or the nearest name."""
    found = search(words)
    if len(found) > 1:
        return f"choose one of{listed(f'{name}: {title(name)}' for name in found)}"
    return f"did you mean {found[0]!r} ({title(found[0])})?" if found else nearest(words, [*_files(), *_registered])


def require_known(spec: str) -> None:
    """Refuse unknown mechanisms in a spec, in a mix over heads or by layer (`a / b`), without importing any.

    Raises:
        ConfigError: there is none of that name, or the specification cannot be read.
    """
    for layer in specs.split(spec, "/"):
        for inner, _ in parts(layer) or [(specs.unshared(layer), 1)]:
            name = specs.parse(inner).name if "(" in inner else inner.strip()
            if name not in _registered and not consent.PATH.match(name):
                _file(name)


@cache
def source(name: str) -> str:
    """The source text of a mechanism's file."""
    package = importlib.util.find_spec(f"{FAMILIES}.{family(name)}")
    assert package is not None
    assert package.submodule_search_locations is not None
    return (Path(package.submodule_search_locations[0]) / f"{name}.py").read_text(encoding="utf-8")


def outline(name: str) -> Info:
    """The facts of a mechanism under default options, read from its source without importing it."""
    if name in _registered:
        return _registered[name].default_info
    return _outline(name)


@cache
def _outline(name: str) -> Info:
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.ClassDef) and node.name == specs.camel(name):
            for statement in node.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id="default_info")], value=ast.Call() as call):
                        return _literal(call)
                    case _:
                        continue
    raise AssertionError(f"{name}.py has no literal `default_info = Info(...)` in class {specs.camel(name)}")


_KINDS: Mapping[str, Callable[..., Any]] = {
    "Info": Info,
    "Supports": Supports,
    "Supports.all": Supports.all,
    "Input": Input,
}


def _literal(node: ast.expr) -> Any:
    """Evaluate a literal in which facts may be called with keywords."""
    if isinstance(node, ast.Call):
        return _KINDS[ast.unparse(node.func)](
            **{str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
        )
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.expr) for key in node.keys):
        return {ast.literal_eval(key): _literal(x) for key, x in zip(node.keys, node.values, strict=True) if key}
    return ast.literal_eval(node)


def docstring(name: str) -> str:
    """The docstring of a mechanism's class, without importing it."""
    if name in _registered:
        return _registered[name].__doc__ or ""
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.ClassDef) and node.name == specs.camel(name):
            return ast.get_docstring(node) or ""
    return ""


def resolve(spec: str) -> "tuple[type[Attention], Mapping[str, object]]":
    """The class and the options of a specification: `name` or `module:Class`, alone or with `(option=value)`.

    Raises:
        ConfigError: an unknown name or option, a value of the wrong type, or more than one mechanism.
    """
    specs.require_text(spec)
    if why := several(spec):
        raise ConfigError(why)
    cls: type[Attention]
    parsed = specs.parse(spec)
    name = parsed.name
    if name in _registered:
        cls = mechanism(_registered[name], name)
    elif specs.is_path(name):
        cls = mechanism(consent.imported(name), name)
    else:
        _file(name)
        cls = specs.load("mechanism", name, _files())
    cls.filled(parsed.options, f"mechanism {name}")
    return cls, parsed.options


def several(spec: str) -> str:
    """Why a specification is not of one mechanism, and the way out; "" where it may be.

    Raises:
        ConfigError: a part of a mix without its number of heads.
    """
    mixed, layers = [inner for inner, _ in parts(spec)], specs.split(spec, "/")
    if mixed:
        return f"{spec!r} is a mix over heads, and one mechanism is wanted: give {' or '.join(mixed)}"
    if len(layers) > 1:
        return f"{spec!r} alternates by layer, and one mechanism is wanted: give {' or '.join(layers)}"
    if specs.unshared(spec) != spec:
        return f"{spec!r} gives a single mechanism some of the heads: write {specs.unshared(spec)}"
    return ""


def mechanism(cls: Any, label: str) -> "type[Attention]":
    """What is wanted as the class of a mechanism.

    Raises:
        ConfigError: it is none, or a template, or has no `default_info`.
    """
    if missing := sorted(_attention(cls, label).__abstractmethods__):
        methods = {name: getattr(cls, name) for name in missing}
        wanted = [
            f"def {name}({', '.join(inspect.signature(x).parameters)}): {x.__doc__}" for name, x in methods.items()
        ]
        lines = listed(line.partition("\n")[0] for line in wanted)
        raise ConfigError(f"{label} lacks {' and '.join(missing)}, so it cannot be built; write in the class{lines}")
    return _described(cls, label)


def _attention(cls: Any, label: str) -> "type[Attention]":
    from regard.core.attention import Attention

    if not (isinstance(cls, type) and issubclass(cls, Attention)):
        raise ConfigError(f"{label} is not a subclass of regard.Attention")
    return cls


def _described(cls: "type[Attention]", label: str) -> "type[Attention]":
    if not isinstance(getattr(cls, "default_info", None), Info):
        raise ConfigError(f"{label} has no class attribute `default_info = Info(...)`")
    return cls


def parts(spec: str) -> list[tuple[str, int]]:
    """The parts of a mix over heads, `a:4 + b(window=8):4`, as (spec, heads); a single mechanism is no mix: [].

    Raises:
        ConfigError: no text, or a part without its number of heads.
    """
    specs.require_text(spec)
    pieces = specs.split(spec, "+")
    if len(pieces) == 1:
        return []
    shares: list[tuple[str, int]] = []
    for piece in pieces:
        inner, count = specs.unshared(piece), specs.split(piece, ":")[-1]
        if inner == piece or not re.fullmatch("0*[1-9][0-9]{0,8}", count):
            raise ConfigError(f"{piece!r} in {spec!r} must name its heads, as in 'local(window=64):4 + linear:4'")
        shares.append((inner, int(count)))
    return shares


def rewritten(spec: str, change: Callable[[str], str]) -> str:
    """A specification with `change` of the mechanism in it, or of each one of a mix over heads.

    Raises:
        ConfigError: a part of a mix without its number of heads.

    Example:
        >>> rewritten("a:4 + b(window=8):4", str.upper)
        'A:4 + B(WINDOW=8):4'
    """
    mixed = parts(spec)
    return " + ".join(f"{change(inner)}:{heads}" for inner, heads in mixed) if mixed else change(spec)


def refuse_inputs(info: Info, spec: str, caller: str) -> None:
    """Refuse a mechanism that needs more than queries, keys and values, where a caller has nothing else.

    Raises:
        UnsupportedError: `info.inputs` is not empty.
    """
    if info.inputs:
        raise UnsupportedError(
            f"{caller} has queries, keys and values, and {spec} also needs {', '.join(info.inputs)}; "
            f"AttentionLayer(dim, {spec!r}, ...) projects what is needed"
        )


def describe(spec: str) -> Info:
    """The facts of a specification, without building it.

    Raises:
        ConfigError: an unknown name or option.

    Example:
        >>> describe("linformer").supports.causal
        False
    """
    mixed = parts(spec)
    if mixed:
        from regard.head_mix import mixed_info

        return mixed_info([describe(inner) for inner, _ in mixed])
    cls, options = resolve(spec)
    return cls.describe(options)


@typed
def build(spec: str, heads: Heads, **options: object) -> "Attention":
    """Build a mechanism.

    Args:
        spec: a name with options, or a mix over heads such as `local(window=64):4 + linear:4`.
        heads: the heads to serve.
        options: more options of the mechanism, checked against its signature; they win over those in `spec`.

    Raises:
        ConfigError: an unknown name or option, a value of the wrong type, or heads that do not add up.
        UnsupportedError: `heads` asks for what the mechanism does not support.

    Example:
        >>> build("local(window=4)", Heads(count=2, key_dim=8, causal=True)).window
        4
    """
    mixed = parts(spec)
    if mixed:
        from regard.head_mix import HeadMix

        if options:
            raise ConfigError(f"options of a mix belong to its parts, got {sorted(options)} beside {spec!r}")
        built: list[tuple[str, Attention]] = []
        for at, (inner, count) in enumerate(mixed):
            draws = _draws(resolve(inner)[0])
            again = any(_draws(type(part)) == draws for _, part in built)
            built.append((inner, build(inner, HeadMix.share(heads, count, spec, at if again else None))))
        return HeadMix(heads, built)
    cls, written = resolve(spec)
    final: dict[str, Any] = {**written, **options}
    return cls(heads, **final)


def _draws(cls: "type[Attention]") -> "str | type[Attention]":
    """What tells its random numbers from those of other mechanisms of the same seed."""
    return cls.draws or cls


def register(cls: "type[Attention]") -> "type[Attention]":
    """Make a third party's mechanism available under its name; usable as a class decorator.

    Raises:
        ConfigError: not a mechanism, no `info`, or a name that is taken.
    """
    from regard.core.attention import registered_name

    name = registered_name(_described(_attention(cls, getattr(cls, "__name__", repr(cls))), cls.__name__))
    if name in _files() or (name in _registered and _registered[name] is not cls):
        raise ConfigError(f"the name {name!r} is taken; rename the class {cls.__name__}")
    _registered[name] = cls
    return cls


def unregister(name: str) -> None:
    """Forget a registered third-party mechanism.

    Raises:
        ConfigError: no such registered name.
    """
    if name not in _registered:
        raise ConfigError(f"{name!r} was not registered: {nearest(name, _registered)}")
    del _registered[name]
