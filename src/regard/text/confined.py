"""What strangers' files describe, tried in a process of its own that renders one chat template or reads one tokenizer.

Templates are programs: Jinja's sandbox keeps them from everything but the text, and the limits of the process keep them
from endless loops and from growing without end, which the sandbox does not. Tokenizers are rules that may take as long.
The process runs this file in Python's isolated mode, so that nothing beside it is imported by accident.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WAIT = 60.0
"""seconds that are waited for it, also on a machine that is busy with other things"""


def confined(request: Mapping[str, Any], who: str, *packages: str, seconds: int = 2, size: int = 1 << 30) -> Any:
    """The answer to a request, both JSON, with the packages, processor time and bytes of memory it may use.

    Raises:
        UnsafeFileError: `who` takes more. ResourceError: no process can be started.
    """
    from regard.core.errors import ResourceError, UnsafeFileError

    # Isolated, it finds these packages only where the interpreter itself would.
    found = [find_spec(name) for name in packages]
    folders = {str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin is not None}
    command = [sys.executable, "-I", __file__, str(seconds), str(size), *sorted(folders)]
    try:
        done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, timeout=_WAIT)
    except subprocess.TimeoutExpired as error:
        raise UnsafeFileError(f"{who} did not end within {_WAIT:g} s") from error
    except OSError as error:
        raise ResourceError(f"cannot start a process for {who}: {error.strerror}") from error
    if done.returncode < 0 or b"MemoryError" in done.stderr:
        raise UnsafeFileError(f"{who} was stopped: it takes too much time or memory")
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ResourceError(f"the process for {who} failed: {reason}")
    return json.loads(done.stdout)


def _limited(seconds: int, size: int) -> None:
    """Bound this process's processor time and its memory, in bytes."""
    with suppress(ImportError):  # a system that knows no limits; who waits gives up after some time
        import resource

        for kind, most in (("RLIMIT_CPU", seconds), ("RLIMIT_AS", size)):
            with suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, kind), (most, most))


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks replies for those who train on them; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def tried(tokenizer: str) -> tuple[int, int]:
    """Characters and tokens of the text with most tokens a character, of some that bring out a tokenizer's rules."""
    from tokenizers import Tokenizer

    found = (1, 0)
    with suppress(BaseException):  # panics are no Exception; whoever uses it next is told
        model, rules = Tokenizer.from_str(tokenizer), json.loads(tokenizer)
        model.no_truncation()
        model.no_padding()
        words = json.dumps([rules[name] for name in rules if name not in ("model", "added_tokens")], ensure_ascii=False)
        for text in (words[: 1 << 16], "a 1.\n" * 200, *(chr(letter) * 64 + "\n1a" for letter in range(1, 127))):
            with suppress(BaseException):
                found = max(found, (len(text), len(model.encode(text))), key=lambda counts: counts[1] / counts[0])
        model.decode(list(range(model.get_vocab_size())))
    return found


def rendered(request: dict[str, Any]) -> dict[str, str]:
    """`text`, or `error` with its `kind`: template, unsafe, refused, size."""
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

    try:
        template = _environment().from_string(request["template"])
        text = template.render(
            messages=request["messages"], add_generation_prompt=True, tools=None, documents=None, **request["tokens"]
        )
    except TemplateSyntaxError as error:
        return {"kind": "template", "error": f"line {error.lineno}: {error.message}"}
    except SecurityError as error:
        return {"kind": "unsafe", "error": str(error)}
    except TemplateError as error:
        return {"kind": "refused", "error": str(error)[:1000]}
    except MemoryError:
        return {"kind": "size", "error": "it takes too much memory"}
    except Exception as error:
        return {"kind": "template", "error": f"{type(error).__name__}: {error}"}
    if len(text) > request["longest"]:
        return {"kind": "size", "error": f"it makes {len(text):,} characters, and {request['longest']:,} are the most"}
    return {"text": text}


if __name__ == "__main__":
    seconds, size, *folders = sys.argv[1:]
    sys.path += folders
    _limited(int(seconds), int(size))
    request = json.load(sys.stdin.buffer)
    answer = rendered(request) if "template" in request else tried(request["tokenizer"])
    json.dump(answer, sys.stdout)  # ASCII alone, whatever the locale
