"""What a run began with, as it was written: configuration, tokenizer, classes, shape of images, origin of weights.

manifest.json of a run holds their checksums, the text of config.toml, so that an edited one can be told from what was
trained, and the run's id, so that a checkpoint of another run can.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from regard.core.errors import CheckpointError, ConfigError
from regard.files.checksums import MANIFEST, Entry, entries, manifest, opened, sealed
from regard.files.folders import write_json, writing
from regard.files.reading import content
from regard.files.writing import partial
from regard.text.reader import Reader
from regard.text.tokenizer import load_tokenizer
from regard_lab.tasks import has_text
from regard_lab.training import toml
from regard_lab.training.config import RunConfig

CONFIG = "config.toml"
FILES = (CONFIG, "tokenizer.json", "labels.json", "images.json", "start.json")


@contextmanager
def fresh(out: Path) -> Iterator[Path]:
    """A folder that becomes the run when all of it is written: a run directory is there whole or not at all.

    What a killed process left of it is thrown away. Of several that begin the same run, the first one has it.
    """
    with ExitStack() as stack:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            new = stack.enter_context(partial(out))
        yield new
        with writing(out):
            new.rename(out)


def record(run: Path, run_id: str) -> None:
    """Write the manifest of a run: which it is, and the files that it has.

    Raises:
        ResourceError: it cannot be written.
    """
    with writing(run / MANIFEST):
        contents = {name: content(run / name) for name in FILES if (run / name).exists()}
    described = manifest({name: Entry.of(data) for name, data in contents.items()})
    written = {**described, "run": run_id, "config": contents[CONFIG].decode("utf-8")}
    if not (run / MANIFEST).exists() or _read(run) != written:
        write_json(run / MANIFEST, sealed(written))


def configuration(run: Path, *, trust: bool, edited: bool) -> RunConfig:
    """The configuration of a run, as `require` finds it.

    Raises:
        ConfigError: there is no run. Others: as `toml.load` and `require`.
    """
    if not (run / CONFIG).exists():
        problem = f"it has no {CONFIG}" if run.exists() else "nothing has that path, and nothing is downloaded"
        raise ConfigError(
            f"{run} is not a run: {problem}. Start one with regard train; published weights are a .gguf file, a "
            "Hugging Face folder or package:NAME"
        )
    config = toml.load(run / CONFIG, trust=trust)
    require(run, edited=edited, trust=trust)
    return config


def tokenizer(run: Path, config: RunConfig) -> Reader | None:
    """The tokenizer of a run; every run on text has one, others have none.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    path = run / "tokenizer.json"
    if not has_text(config.task):
        return None
    if not path.exists():
        raise CheckpointError(f"{path} is missing, so the run's tokens cannot be read; restore it, or start a new run")
    return load_tokenizer(path)


def id_of(run: Path) -> str:
    """Which run it is.

    Raises:
        CheckpointError: its manifest is missing or damaged.
    """
    return _read(run)["run"]


def require(run: Path, *, edited: bool = False, trust: bool = False) -> None:
    """Compare the files of a run with its manifest.

    Args:
        run: its directory.
        edited: another config.toml is agreed to.
        trust: was said, and is part of the way out.

    Raises:
        CheckpointError: a file is missing, damaged or another one; of config.toml every difference is listed.
    """
    written = _read(run)
    for name, entry in entries(written).items():
        if name == CONFIG and edited:
            continue
        try:
            found = content(run / name)
        except OSError as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise CheckpointError(f"cannot read the run: {run / name} {what}; restore it, or start a new run") from None
        try:
            entry.require(Entry.of(found), name)
        except ValueError as error:
            if name == CONFIG:
                raise CheckpointError(_edited(run, written["config"], found, trust=trust)) from None
            raise CheckpointError(f"{run}: {error}; restore it, or start a new run") from None


def require_same(config: RunConfig, saved: RunConfig, run: Path) -> None:
    """Refuse to go on with another configuration than the one that is asked for.

    Raises:
        ConfigError: they differ; every difference is listed.
    """
    wanted, written = asdict(config), asdict(saved)
    if config.task.name != saved.task.name:
        wanted, written = {"task": {"name": config.task.name}}, {"task": {"name": saved.task.name}}
    differences = [
        f"{section}.{name}: {written[section][name]!r} there, {value!r} asked for"
        for section, values in wanted.items()
        for name, value in values.items()
        if written[section][name] != value
    ]
    if differences:
        raise ConfigError(
            f"{run} has another configuration; continue it as it is with --resume {quote(str(run))}, or choose another "
            "name\n  " + "\n  ".join(differences)
        )


def _read(run: Path) -> dict[str, Any]:
    try:
        written = opened(content(run / MANIFEST))
        entries(written)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {run / MANIFEST}: {error.strerror}; restore it, or start a new run"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{run / MANIFEST} is damaged: {error}; restore it, or start a new run") from None
    return written


def _edited(run: Path, before: str, now: bytes, *, trust: bool) -> str:
    """What differs between two configurations, and what can be done about it."""
    try:
        first, last = _flat(tomllib.loads(before)), _flat(tomllib.loads(now.decode("utf-8")))
    except ValueError as error:  # no TOML, or no UTF-8
        return f"{run / CONFIG} is another one than when the run began, and no TOML: {error}; put it back"
    lines = [
        f"{name}: {_of(first, name)} when it began, {_of(last, name)} now"
        for name in sorted(first.keys() | last.keys())
        if _of(first, name) != _of(last, name)
    ]
    word, argument = (" --trust", ", trust=True") if trust else ("", "")
    return (
        f"{run / CONFIG} was edited since the run began; put it back, or agree to it with "
        f"regard train --resume {quote(str(run))} --edited{word} (in Python: resume(..., edited=True{argument}))\n  "
        + "\n  ".join(lines or ["only spaces and comments differ"])
    )


def _of(table: Mapping[str, object], name: str) -> str:
    return json.dumps(table[name], ensure_ascii=False, default=str) if name in table else "its default"


def _flat(table: Mapping[str, Any]) -> dict[str, object]:
    """Keys of sections, by their dotted names; what is in no section, by its own."""
    flat: dict[str, object] = {}
    for section, values in table.items():
        if isinstance(values, dict):
            flat |= {f"{section}.{name}": value for name, value in values.items()}
        else:
            flat[section] = values
    return flat
