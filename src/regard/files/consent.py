"""Whether an object at an import path may be imported: doing so runs the code of its module.

A path that somebody types, in Python or on the command line, is agreed to. One that a file names is not, until the
reader of the file says that it is trusted. What such code then does wrong is told with the lines of its own files.
"""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from regard.core.errors import ConfigError

PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""`module:name`"""
_WORD = re.compile(r"[\d.]*+([^\W\d][\w.]*+(?::[^\W\d]\w*)?)|[\d.]++")
"""what may begin a path, whether it is one or not: long words are looked at once"""
_OWN = ("regard.attention.", "regard_lab.published.")
"""mechanisms of the library, which whoever reads a file has already"""
_agreed: set[str] = set()
"""paths that this process has imported: reading them in a file runs nothing new"""
_modules: dict[str, Path | None] = {}
"""the modules that were asked for, without their packages' inner ones, and the folder of each that has a file"""
_LINES = 5
"""of a traceback, the innermost ones"""


def imported(path: str) -> object:
    """The object at `module:name`. The working folder is searched last, so that it hides nothing that is installed.

    Raises:
        ConfigError: no such module or name, or a module that fails.
    """
    module, _, name = path.partition(":")
    whole = module.partition(".")[0]
    _search_here(whole)
    _modules[whole] = _folder(whole)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {path!r}: {error}{_listed(error)}") from error
    except (Exception, SystemExit) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"cannot import {path!r}: {type(error).__name__}: {why}{_listed(error)}") from error
    _agreed.add(path)
    return found


def fault(error: BaseException) -> ConfigError | None:
    """What to tell of an error that code imported by its path raised, or that something it called did: the lines of its
    files. None: no such code had a part in it.
    """
    listed = _listed(error)
    return ConfigError(f"{type(error).__name__}: {error}{listed}") if listed else None


def lines(error: BaseException) -> list[str]:
    """Where an error passed through code that was imported by its path, the innermost line last.

    Returns:
        The file, the number of the line, the function and the line itself, of each.
    """
    found = [
        f"{_shown(entry.filename)}, line {entry.lineno}, in {entry.name}: {entry.line}"
        for frame, entry in zip(
            traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True
        )
        if _is_theirs(frame[0].f_globals.get("__name__", ""), entry.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename is not None:
        found.append(f"{_shown(error.filename)}, line {error.lineno}: {(error.text or '').strip()}")
    return found[-_LINES:]


def _listed(error: BaseException) -> str:
    return "".join(f"\n  {line}" for line in lines(error))


def _is_theirs(module: str, file: str) -> bool:
    """Whether a module was imported by its path, or stands beside one that was."""
    path = Path(file)
    if module.partition(".")[0] in ("regard", "regard_lab"):
        return False
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return module.partition(".")[0] in _modules or (not installed and path.parent in _modules.values())


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _folder(module: str) -> Path | None:
    """None: a namespace, one built in, or one that is not there. Its folder is not that of code without a file."""
    spec = importlib.util.find_spec(module) if module not in sys.modules else sys.modules[module].__spec__
    return Path(spec.origin).parent if spec and spec.has_location and spec.origin else None


def _search_here(module: str) -> None:
    if module in sys.modules or importlib.util.find_spec(module) is not None:
        return
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def require(paths: Sequence[str], source: str, *, trust: bool) -> None:
    """Refuse a file that names import paths and is not trusted.

    Args:
        paths: those that it names.
        source: the file, for messages.
        trust: whether it is.

    Raises:
        ConfigError: it is not; nothing was imported.
    """
    foreign = [path for path in paths if path not in _agreed and not path.startswith(_OWN)]
    if foreign and not trust:
        modules = sorted({path.partition(":")[0] for path in foreign})
        named = f"the module {modules[0]}" if len(modules) == 1 else f"the modules {', '.join(modules)}"
        raise ConfigError(
            f"{source} names {', '.join(foreign)}, so {named} would be imported and run: if you trust it, add --trust "
            "(in Python: trust=True)"
        )


def paths_in(text: str) -> list[str]:
    """Every `module:name` that stands in a text.

    Example:
        >>> paths_in("score(function='my.module:function') + 3x:Y")
        ['my.module:function', 'x:Y']
    """
    return [word for word in _WORD.findall(text) if ":" in word]
