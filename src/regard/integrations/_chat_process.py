"""A process that renders one chat template and ends. It reads a request and writes an answer, both JSON.

Templates are programs of strangers: Jinja's sandbox keeps them from everything but the text, and the limits of this
process keep them from endless loops and from growing without end, which the sandbox does not. Started by `chat`, in
Python's isolated mode, so that nothing beside this file is imported by accident.
"""

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any


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


def answer(request: dict[str, Any]) -> dict[str, str]:
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
        return {"kind": "refused", "error": str(error)}
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
    json.dump(answer(json.load(sys.stdin.buffer)), sys.stdout)  # ASCII alone, whatever the locale
