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

from regard.core.errors import ConfigError, DataError

MODULES = (
    "argparse", "ast", "bisect", "calendar", "colorsys", "configparser", "csv", "difflib", "fnmatch", "fractions",
    "genericpath", "gettext", "heapq", "inspect", "json.decoder", "json.encoder", "numbers", "posixpath", "random",
    "shlex", "shutil", "statistics", "string", "tempfile", "textwrap", "tokenize",
)  # fmt: skip
"""of Python's standard library, all in Python, all without side effects on import"""
FUNCTION_LINES = range(5, 16)
MOST_FUNCTION_BYTES = 600


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
    texts: set[str] = set()
    for name in MODULES:
        try:
            source = inspect.getsource(importlib.import_module(name))
        except OSError as error:
            raise DataError(f"the source of {name} is not there ({error}); use a Python with its library") from error
        module_lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                lines = textwrap.dedent("\n".join(module_lines[node.lineno - 1 : node.end_lineno])).splitlines()
                text = "\n".join(lines)
                if (
                    len(lines) in FUNCTION_LINES
                    and len(text.encode()) <= MOST_FUNCTION_BYTES
                    and lines[0].rstrip().endswith(":")
                ):
                    texts.add(text)
    return tuple(sorted(filter(_stands_alone, texts)))


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
    drawn: list[Function] = []
    taken: set[str] = set()
    for at in draw.permutation(len(makers)):
        text = makers[at]
        known = {_address(text, change): text}
        if taken.isdisjoint(known):
            variants = _bodies(text, lines, draw) if change == "body" else _signatures(text, lines, draw)
            while len(known) < each:
                variant = next(variants)
                if _address(variant, change) not in taken:
                    known.setdefault(_address(variant, change), variant)
            family = len(drawn) // each
            drawn += [Function(one, one.splitlines()[0], family) for one in known.values()]
            taken |= set(known)
        if len(drawn) == count * each:
            return drawn
    raise ConfigError(f"there are {len(drawn) // each} functions whose {change} is told apart, asked for {count}")


def _address(text: str, change: str) -> str:
    """The part that no other version may have, or asking by it would have no answer."""
    return text if change == "body" else text.splitlines()[0]


def _bodies(text: str, lines: list[str], draw: np.random.Generator) -> Iterator[str]:
    text_lines = text.splitlines()
    line_numbers = [at for at in range(1, len(text_lines)) if text_lines[at].strip()]
    while True:
        at = line_numbers[draw.integers(len(line_numbers))]
        new = lines[draw.integers(len(lines))].strip()
        depth = text_lines[at][: len(text_lines[at]) - len(text_lines[at].lstrip())]
        yield "\n".join([*text_lines[:at], depth + new, *text_lines[at + 1 :]])


def _signatures(text: str, lines: list[str], draw: np.random.Generator) -> Iterator[str]:
    text_lines = text.splitlines()
    names = sorted({word for line in lines for word in re.findall(r"\b[a-z]{3,8}\b", line)})
    arguments = _arguments(text)
    while True:
        old, new = arguments[draw.integers(len(arguments))], names[draw.integers(len(names))]
        head, bracket, tail = text_lines[0].partition("(")
        yield "\n".join([head + bracket + re.sub(rf"\b{old}\b", new, tail, count=1), *text_lines[1:]])


def _arguments(text: str) -> list[str]:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return [one.arg for one in node.args.args if one.arg != "self"]
