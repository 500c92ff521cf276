"""The `regard` command: finds the verb, reads its options, turns errors into messages and exit codes.

Exit codes: 0 ok, 1 bug, 2 usage or config, 3 data, 4 checkpoint or datastore, 5 numerics, 6 resources, 7 a check or
gate failed, 130 and 143 signals.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard import __version__
from regard.cli._interrupted import terminable, told
from regard.core.errors import ConfigError, RegardError, nearest, out_of_memory, printable
from regard.files import consent
from regard.files.reading import found_in


class Verb(NamedTuple):
    """A file of a package of verbs."""

    package: str
    file: Path


@functools.cache
def known() -> dict[str, Verb]:
    """Verb -> its file, without importing one."""
    found: dict[str, Verb] = {}
    for package in ("regard.cli", *(each.value for each in importlib.metadata.entry_points(group="regard.verbs"))):
        top, *below = package.split(".")
        spec = importlib.util.find_spec(top)
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            found |= {path.stem: Verb(package, path) for path in found_in(Path(folder, *below), ".py")}
    return {verb: found[verb] for verb in sorted(found) if verb != "main" and not verb.startswith("_")}


def verbs() -> dict[str, str]:
    """Verb -> its one-line description, from its file, without importing it."""
    texts = {verb: ast.get_docstring(ast.parse(at.file.read_text(encoding="utf-8"))) for verb, at in known().items()}
    return {verb: (text or "").partition("\n")[0] for verb, text in texts.items()}


def usage() -> str:
    """The text that `regard --help` prints."""
    described = verbs()
    width = max(map(len, described))
    lines = [
        "regard: every attention mechanism behind one interface, compared on your own data",
        "",
        "usage: regard VERB [options]        regard VERB --help",
        "",
        *(f"  {verb:{width}}  {line}" for verb, line in described.items()),
        "",
        "Start with: regard compare",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the words after `regard`; None: those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words[:1] if word in known()), "")
    return answered(f"regard {verb}".strip(), lambda: _run(words))


def answered(name: str, run: Callable[[], int]) -> int:
    """The exit code of a command, after its error, if it ended by one, was said in a line that begins with its name."""
    try:
        with terminable():
            return _answered(name, run)
    except KeyboardInterrupt as stop:
        return told(name, stop)


def _answered(name: str, run: Callable[[], int]) -> int:
    try:
        code = run()
        print(end="", flush=True)  # also where stdout is closed, and None
        return code
    except RegardError as error:
        _say(f"{name}: {error}")
        return error.exit_code
    except BrokenPipeError:
        os.close(sys.stdout.fileno())  # whose number is free now, even where no other is
        os.open(os.devnull, os.O_WRONLY)  # nobody reads: leave without a second error
        return 0
    except OSError as error:
        if error.errno is None:
            return _bug()
        _say(printable(f"{name}: {error.strerror}: {error.filename or 'standard output'}"))
        return 6
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except Exception as error:
        if out_of_memory(error):
            _say(f"{name}: out of memory; use a smaller model, batch or length")
            return 6
        fault = consent.fault(error)
        if fault is None:
            return _bug()
        _say(f"{name}: {fault}")
        return fault.exit_code


def _say(line: str) -> None:
    """Write a line at once: `print` writes its end apart, and lines of several processes would run together."""
    sys.stderr.write(f"{line}\n")


def _run(words: list[str]) -> int:
    for word in words if words[:1] != ["generate"] else ():  # which takes texts, and says more of them
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(f"{word!r} is not UTF-8, and what regard writes is; rename it")
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    verb = words[0]
    if verb not in known():
        raise ConfigError(f"unknown command {verb!r}: {nearest(verb, known())}")
    package = known()[verb].package
    module = importlib.import_module(f"{package}.{verb}")
    if hasattr(module, "parse"):
        options = module.parse(words[1:])
    else:
        read = importlib.import_module(package).read
        options = read(module.Options, words[1:], verb=verb, description=module.__doc__)
    from regard.catalog import require_known

    for spec in getattr(options, "specs", ()):
        require_known(spec)  # before torch is imported, which takes seconds
    return module.run(options)


def _bug() -> int:
    _say(printable(traceback.format_exc()))
    _say("regard: this is a bug; please report it with the lines above")
    return 1


if __name__ == "__main__":
    sys.exit(main())
