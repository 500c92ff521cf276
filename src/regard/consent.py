"""Whether an object at an import path may be imported: doing so runs the code of its module.

A path that somebody types, in Python or on the command line, is agreed to. One that a file names is not, until the
reader of the file says that it is trusted.
"""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence

from regard.errors import ConfigError

PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""`module:name`"""
_OWN = "regard.attention."
"""mechanisms of the library, which whoever reads a file has already"""
_agreed: set[str] = set()
"""paths that this process has imported: reading them in a file runs nothing new"""


def imported(path: str) -> object:
    """The object at `module:name`. The working folder is searched last, so that it hides nothing that is installed.

    Raises:
        ConfigError: no such module or name, or a module that fails.
    """
    module, _, name = path.partition(":")
    _search_here(module.partition(".")[0])
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {path!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"cannot import {path!r}: {type(error).__name__}: {error}") from error
    _agreed.add(path)
    return found


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
