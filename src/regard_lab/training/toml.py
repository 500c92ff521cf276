"""Run configurations as TOML: read, validated with all problems at once, layered, and written.

The sections are those of `RunConfig`. `task.name` chooses the task, and with it the kind of model. A key that is absent
has its default; TOML has no null, and every field that may be None has None as its default.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_args

from regard import specs
from regard.core.errors import ConfigError, nearest
from regard.files import consent
from regard.files.reading import text
from regard_lab.tasks.config import TaskConfig
from regard_lab.training.config import SHAPES, RunConfig, TrainingConfig, default_model

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Table = dict[str, Any]

_TASKS: dict[str, type] = {task.name: task for task in get_args(TaskConfig)}


def load(path: Path, *, trust: bool = False) -> RunConfig:
    """The configuration in a TOML file.

    Args:
        path: the file.
        trust: it may name classes and functions by import path, whose modules run when the model is built.

    Raises:
        ConfigError: no such file, no TOML, import paths without `trust`, or contents that make no sense; of these every
            problem is listed.
    """
    return from_table(_parsed(path, trust=trust), source=str(path))


def layer(
    defaults: RunConfig,
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    trust: bool = False,
) -> RunConfig:
    """Defaults, then a file, then single values: the later wins.

    Another task than that of the defaults starts from its own defaults, and so does the model where nothing was said of
    it or where the task trains another kind.

    Args:
        defaults: the values that hold where nothing else is said.
        path: TOML file; None: none.
        overrides: dotted key -> value, such as {"training.steps": 200}; None takes a key back to its class's default.
        trust: of the file, as `load`.

    Raises:
        ConfigError: as `load`.
    """
    table = to_table(defaults)
    file_table = {} if path is None else _parsed(path, trust=trust)
    flags: Table = {}
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        flags.setdefault(section, {})[name] = value
    source = "configuration" if path is None else str(path)
    if not all(isinstance(values, dict) for values in file_table.values()):
        return from_table(file_table, source=source)  # which says what is wrong
    if defaults.model == default_model(defaults.task):
        table["model"] = {}
    for update in (file_table, flags):
        before = table["task"]["name"]
        named = update.get("task", {}).get("name", before)
        if named != before:
            table["task"] = {"name": named}
            if _shape(table) is not type(defaults.model):
                table["model"] = file_table.get("model", {})
        for section, values in update.items():
            table[section] = {**table.get(section, {}), **values}
    return from_table(table, source=source)


def save(config: RunConfig, path: Path) -> None:
    """Write a configuration that `load` reads back equal."""
    path.write_text(dumps(config), encoding="utf-8")


def dumps(config: RunConfig) -> str:
    """A configuration as TOML text.

    Example:
        >>> dumps(RunConfig()).splitlines()[0]
        '[model]'
    """
    sections = []
    for section, values in to_table(config).items():
        sections.append("\n".join([f"[{section}]", *(f"{name} = {_literal(value)}" for name, value in values.items())]))
    return "\n\n".join(sections) + "\n"


def to_table(config: RunConfig) -> Table:
    """A configuration as nested dictionaries, without the keys that are None."""
    table: Table = {}
    for section in fields(config):
        part = getattr(config, section.name)
        nothing = [f.name for f in fields(part) if getattr(part, f.name) is None and _default(f) is not None]
        assert not nothing, f"{section.name}: {nothing} are None, which is not their default and cannot be written"
        values = _plain(part)
        table[section.name] = {"name": part.name, **values} if section.name == "task" else values
    return table


def _plain(part: "DataclassInstance") -> Table:
    return {name: value for name, value in asdict(part).items() if value is not None}


def from_table(table: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """The configuration in nested dictionaries.

    Raises:
        ConfigError: every problem at once, each with its dotted path.
    """
    problems: list[str] = []
    parts: dict[str, Any] = {}
    known = {section.name for section in fields(RunConfig)}
    problems += [f"unknown section [{name}]; {nearest(name, known)}" for name in table if name not in known]
    for section in ("task", "training", "model"):  # the task first: it decides what the model may be
        values = table.get(section, {})
        if not isinstance(values, Mapping):
            problems.append(f"{section} must be a section of keys and values, got {values!r}")
            continue
        values = {name: value for name, value in values.items() if value is not None}
        cls = _section_class(section, values, table, problems)
        if section == "model" and parts.get("task") is not None:
            values = {**_plain(default_model(parts["task"])), **values}
        if cls is not None:
            parts[section] = validated(cls, section, values, problems)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{source}: {count}\n  " + "\n  ".join(problems))
    return RunConfig(**parts)


def _section_class(section: str, values: Table, table: Mapping[str, Any], problems: list[str]) -> type | None:
    if section == "training":
        return TrainingConfig
    if section == "model":
        return _shape(table)
    name = values.pop("name", "text")
    if name not in _TASKS:
        problems.append(f"task.name: unknown task {name!r}; {nearest(str(name), _TASKS)}")
    return _TASKS.get(name)


def _shape(table: Mapping[str, Any]) -> type:
    """The kind of model that the task trains; of a task that there is not, what the nearest one does."""
    task = table.get("task", {})
    name = task.get("name", "text") if isinstance(task, Mapping) else "text"
    return SHAPES[(difflib.get_close_matches(str(name), SHAPES, n=1) or ["text"])[0]]


def validated(cls: type, section: str, values: Table, problems: list[str]) -> object:
    """The section as its dataclass, or None and what is wrong with it in `problems`.

    A dataclass checks itself only once every field has the right type; so fields that do not are reported, left out,
    and the rest is tried again.
    """
    from pydantic import TypeAdapter, ValidationError

    # Strict mode takes no "1" for 1 nor 1 for true; of JSON it still takes a list for a tuple.
    of_json: Any = GenericAlias(tuple, (cls,))
    adapter = TypeAdapter(of_json, config={"extra": "forbid", "strict": True})
    absent: set[str] = set()
    while True:
        try:
            return adapter.validate_json(json.dumps([values], default=str))[0]
        except ValidationError as error:
            wrong: set[str] = set()
            for detail in error.errors():
                place = [str(part) for part in detail["loc"][1:]]
                if not place:
                    problems.extend(_own_problems(cls, section, detail["msg"].removeprefix("Value error, ")))
                elif detail["type"] != "missing" or place[0] not in absent:
                    problems.append(_problem(cls, section, place, detail["type"], detail["msg"], detail["input"]))
                wrong.update(place[:1])
            absent |= wrong
            if not wrong & values.keys():
                return None
            values = {name: value for name, value in values.items() if name not in wrong}


def _problem(cls: type, section: str, place: list[str], kind: str, message: str, got: object) -> str:
    path = ".".join([section, *place])
    if kind == "unexpected_keyword_argument":
        return f"{path}: unknown key; {nearest(place[-1], [field.name for field in fields(cls)])}"
    if kind == "missing":
        return f"{path}: is missing"
    return f"{path}: {message[0].lower()}{message[1:]}, got {got!r}"


def _own_problems(cls: type, section: str, message: str) -> list[str]:
    """A dataclass's own complaints, one a line; those that begin with a field get its dotted path."""
    names = {field.name for field in fields(cls)}
    return [
        f"{section}.{line}" if line.partition(" ")[0] in names else f"{section}: {line}"
        for line in message.splitlines()
    ]


def _parsed(path: Path, *, trust: bool) -> Table:
    """A file's tables. The task names data, and no specifications: `C:Data` there is a folder."""
    try:
        table = tomllib.loads(text(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # no TOML, no UTF-8, or a number of more digits than Python reads
        raise ConfigError(f"{path} is not TOML: {error}") from None
    named = specs.paths({section: values for section, values in table.items() if section != "task"})
    consent.require(named, str(path), trust=trust)
    return table


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default


def _literal(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
