"""The `regard` command: finds the verb, reads its options, turns errors into messages and exit codes.

Exit codes: 0 ok, 1 bug, 2 usage or config, 3 data, 4 checkpoint or datastore, 5 numerics, 6 resources, 7 a check or
gate failed, 130 and 143 signals.
"""

import ast
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from regard import __version__, consent
from regard.cli._interrupted import terminable, told
from regard.errors import ConfigError, RegardError, nearest, out_of_memory, printable
from regard.reading import found_in


def _files() -> dict[str, Path]:
    """Verb -> its file."""
    paths = found_in(Path(__file__).parent, ".py")
    return {path.stem: path for path in paths if path.stem != "main" and not path.stem.startswith("_")}


def verbs() -> dict[str, str]:
    """Verb -> its one-line description, from the files of this folder, without importing them."""
    described = {
        verb: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for verb, path in _files().items()
    }
    return {verb: text.partition("\n")[0] for verb, text in described.items()}


def usage() -> str:
    """The text that `regard --help` prints."""
    known = verbs()
    width = max(map(len, known))
    lines = [
        "regard: every attention mechanism behind one interface, compared on your own data",
        "",
        "usage: regard VERB [options]        regard VERB --help",
        "",
        *(f"  {verb:{width}}  {line}" for verb, line in known.items()),
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
    try:
        with terminable():
            return _answered(words)
    except KeyboardInterrupt as stop:
        return told(_name(words), stop)


def _name(words: list[str]) -> str:
    """Who says something."""
    return " ".join(["regard", *(word for word in words[:1] if word in _files())])


def _answered(words: list[str]) -> int:
    """The exit code of a command, and the error that it said."""
    name = "regard"
    try:
        name = _name(words)
        code = _run(words)
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
    verb, known = words[0], _files()
    if verb not in known:
        raise ConfigError(f"unknown command {verb!r}: {nearest(verb, known)}")
    module = importlib.import_module(f"regard.cli.{verb}")
    if hasattr(module, "parse"):
        options = module.parse(words[1:])
    else:
        from regard.cli._options import read

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
