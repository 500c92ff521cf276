"""Real functions, and versions of them that differ by one line: what exact retrieval of code has to tell apart."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from regard.errors import ConfigError, DataError

MODULES = (
    "argparse", "ast", "bisect", "calendar", "colorsys", "configparser", "csv", "difflib", "fnmatch", "fractions",
    "genericpath", "gettext", "heapq", "inspect", "json.decoder", "json.encoder", "numbers", "posixpath", "random",
    "shlex", "shutil", "statistics", "string", "tempfile", "textwrap", "tokenize",
)  # fmt: skip
"""of Python's standard library, all in Python, all without side effects on import"""
LINES = range(5, 16)
MOST_BYTES = 600


@dataclass(frozen=True)
class Function:
    """text: its source. signature: its first line. family: versions of one function share it."""

    text: str
    signature: str
    family: int


@cache
def functions() -> tuple[str, ...]:
    """The sources of all functions of 5 to 15 lines with a signature on one line, without repetition, sorted.

    They come from the standard library of the Python that runs, so other versions have others.

    Raises:
        DataError: this Python has no sources.
    """
    found: set[str] = set()
    for name in MODULES:
        try:
            source = inspect.getsource(importlib.import_module(name))
        except OSError as error:
            raise DataError(f"the source of {name} is not there ({error}); use a Python with its library") from error
        whole = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                lines = textwrap.dedent("\n".join(whole[node.lineno - 1 : node.end_lineno])).splitlines()
                text = "\n".join(lines)
                if len(lines) in LINES and len(text.encode()) <= MOST_BYTES and lines[0].rstrip().endswith(":"):
                    found.add(text)
    return tuple(sorted(filter(_stands_alone, found)))


def _stands_alone(text: str) -> bool:
    """Whether the text is a function by itself: one that holds text at column 0 is not, once it is unindented."""
    try:
        return isinstance(ast.parse(text).body[0], ast.FunctionDef)
    except SyntaxError:
        return False


def versions(count: int, each: int, *, change: str = "body", seed: int = 0) -> list[Function]:
    """`count` functions, each in `each` versions: the real one, and others that differ from it by one line.

    Args:
        count: real functions.
        each: versions of each, the real one first. No two texts are equal, and no two signatures where these change.
        change: "body": another function's line stands in the place of one, at the same depth; "signature": an argument
            has another name in the first line.
        seed: of the choice.

    Raises:
        ConfigError: an unknown change, numbers below 1, or more functions than there are.
        DataError: this Python has no sources.

    Example:
        >>> real, other = versions(1, 2)
        >>> sum(a != b for a, b in zip(real.text.splitlines(), other.text.splitlines(), strict=True))
        1
    """
    if change not in ("body", "signature"):
        raise ConfigError(f"functions change in their body or their signature, got {change!r}")
    draw = np.random.default_rng(seed)
    pool = functions()
    makers = [text for text in pool if len(set(_arguments(text))) >= 2] if change == "signature" else pool
    if count < 1 or each < 1:
        raise ConfigError(f"functions and versions must be at least 1, got {count} and {each}")
    lines = sorted({line for text in pool for line in text.splitlines()[1:] if line.strip()})
    found: list[Function] = []
    taken: set[str] = set()
    for at in draw.permutation(len(makers)):
        text = makers[at]
        known = {_address(text, change): text}
        if taken.isdisjoint(known):
            others = _bodies(text, lines, draw) if change == "body" else _signatures(text, lines, draw)
            while len(known) < each:
                other = next(others)
                if _address(other, change) not in taken:
                    known.setdefault(_address(other, change), other)
            family = len(found) // each
            found += [Function(one, one.splitlines()[0], family) for one in known.values()]
            taken |= set(known)
        if len(found) == count * each:
            return found
    raise ConfigError(f"there are {len(found) // each} functions whose {change} is told apart, asked for {count}")


def _address(text: str, change: str) -> str:
    """What must not be that of another version, or asking by it would have no answer."""
    return text if change == "body" else text.splitlines()[0]


def _bodies(text: str, lines: list[str], draw: np.random.Generator) -> Iterator[str]:
    own = text.splitlines()
    places = [at for at in range(1, len(own)) if own[at].strip()]
    while True:
        at = places[draw.integers(len(places))]
        new = lines[draw.integers(len(lines))].strip()
        depth = own[at][: len(own[at]) - len(own[at].lstrip())]
        yield "\n".join([*own[:at], depth + new, *own[at + 1 :]])


def _signatures(text: str, lines: list[str], draw: np.random.Generator) -> Iterator[str]:
    own = text.splitlines()
    names = sorted({word for line in lines for word in re.findall(r"\b[a-z]{3,8}\b", line)})
    arguments = _arguments(text)
    while True:
        old, new = arguments[draw.integers(len(arguments))], names[draw.integers(len(names))]
        head, bracket, rest = own[0].partition("(")
        yield "\n".join([head + bracket + re.sub(rf"\b{old}\b", new, rest, count=1), *own[1:]])


def _arguments(text: str) -> list[str]:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return [one.arg for one in node.args.args if one.arg != "self"]
