"""Hugging Face folders: a configuration, safetensors in one file or several, a tokenizer. Nothing outside is read."""

import json
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors import SafetensorError
from torch import Tensor

from regard.core.errors import CheckpointError, UnsafeFileError
from regard.files.reading import plain
from regard.integrations.architectures import Architecture, Config, Form
from regard.integrations.weights import Stored, listed

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_SETTINGS, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
REPLACED = "regard_attention"
"""setting of a model that was saved after `replace_attention`: the name of each place -> what it was built from"""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def inside(folder: Path, names: list[str]) -> list[Path]:
    """The files of these names in a folder; in a snapshot of a Hugging Face cache, links to the blobs beside it too.

    Raises:
        UnsafeFileError: names with a path in them, links that lead out of the folder, and what is no plain file; all
            of them are listed.
        CheckpointError: files that are missing.
    """
    root = folder.resolve()
    homes = {root, *(path.parent / "blobs" for path in root.parents if path.name == "snapshots")}
    unsafe: list[str] = []
    missing: list[str] = []
    for name in names:
        path = folder / name
        if name != Path(name).name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            unsafe.append(f"{name!r} is no plain file name")
        elif not path.exists():
            missing.append(name)
        elif path.resolve().parent not in homes:
            unsafe.append(f"{name} is a link to {path.resolve()}")
        elif not stat.S_ISREG(path.stat().st_mode):
            unsafe.append(f"{name} is no regular file")
    if unsafe:
        raise UnsafeFileError(f"{folder} points outside itself; if you trust it, copy it with cp -rL:{listed(unsafe)}")
    if missing:
        raise CheckpointError(f"{folder} is incomplete:{listed(f'{name} is missing' for name in missing)}")
    return [folder / name for name in names]


def read_text(folder: Path, name: str) -> str:
    """A text file of a folder.

    Raises:
        CheckpointError: missing, or no UTF-8. UnsafeFileError: as `inside`.
    """
    (path,) = inside(folder, [name])
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def read_json(folder: Path, name: str, kind: type = dict) -> Any:
    """An object in a JSON file of a folder, or another kind of value.

    Raises:
        CheckpointError: missing, damaged or another kind of value. UnsafeFileError: as `inside`.
    """
    try:
        values = json.loads(read_text(folder, name))
    except ValueError as error:
        raise CheckpointError(f"cannot read {folder / name}: {error}") from error
    if not isinstance(values, kind):
        raise CheckpointError(f"{folder / name} holds {type(values).__name__}, not a {kind.__name__} of settings")
    return values


def tokenizer_settings(folder: Path) -> dict[str, object]:
    """The settings of a folder's tokenizer, special tokens as text, from the files that transformers reads them from.

    Raises:
        CheckpointError, UnsafeFileError: as `read_json`.
    """
    values = read_json(folder, TOKENIZER_SETTINGS) if (folder / TOKENIZER_SETTINGS).exists() else {}
    if "added_tokens_decoder" not in values and (folder / SPECIAL_TOKENS).exists():
        values |= read_json(folder, SPECIAL_TOKENS)
    if (folder / CHAT_TEMPLATE).exists():
        values["chat_template"] = read_text(folder, CHAT_TEMPLATE)
    return {name: value.get("content", value) if isinstance(value, dict) else value for name, value in values.items()}


def published(folder: Path) -> dict[str, object]:
    """The configuration of a folder that has the network of its architecture.

    Raises:
        CheckpointError: a model saved after `replace_attention`, which without it would be another network.
        Others: as `read_json`.
    """
    values = read_json(folder, CONFIG)
    if REPLACED in values:
        raise CheckpointError(
            f"{folder / CONFIG} is of a model saved after replace_attention, whose attention is not that of its "
            "architecture; load it with regard.integrations.huggingface.load_replaced"
        )
    return values


def read_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder's safetensors files, read when asked for.

    Raises:
        CheckpointError: no safetensors, a file that is truncated or damaged, or a weight map that says what the files
            do not; all problems are listed. UnsafeFileError: as `inside`, or weights as pickle only.
    """
    if not (folder / INDEX).exists():
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        if pickles and not (folder / WEIGHTS).exists():
            raise UnsafeFileError(
                f"{folder} has its weights as pickle ({', '.join(pickles)}), which can run code; convert to {WEIGHTS}"
            )
        return tensors_of(*inside(folder, [WEIGHTS]))
    weight_map = read_json(folder, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensors to file names")
    files = {path.name: tensors_of(path) for path in inside(folder, sorted(set(weight_map.values())))}
    problems = [
        f"{tensor} is not in {name}, where the weight map says it is"
        for tensor, name in weight_map.items()
        if tensor not in files[name]
    ]
    problems += [
        f"{tensor} is in {name}, which the weight map does not say"
        for name, tensors in files.items()
        for tensor in tensors
        if weight_map.get(tensor) != name
    ]
    if problems:
        raise CheckpointError(f"{folder / INDEX} does not describe its files:{listed(problems)}")
    return {tensor: files[name][tensor] for tensor, name in weight_map.items()}


def tensors_of(path: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file, read when asked for.

    Raises:
        CheckpointError: it is truncated or damaged.
    """
    try:
        with plain(path):
            pass
        file = safetensors.safe_open(path, framework="pt")
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: Stored(tuple(one.get_shape()), _reader(file, name), one.get_dtype()) for name, one in found.items()
        }
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: {error}; fetch it again") from error


def _reader(file: safetensors.safe_open, name: str) -> Callable[[], Tensor]:
    return lambda: file.get_tensor(name)


def under_one_name(stored: Mapping[str, Stored], architecture: Architecture) -> dict[str, Stored]:
    """The tensors under the names that the architecture's file has, whatever other files call them.

    Raises:
        CheckpointError: a tensor under two names; all are listed.
    """
    tensors: dict[str, Stored] = {}
    twice: list[str] = []
    for name, tensor in stored.items():
        now = name
        for other, ours in architecture.renamed.items():
            now = re.sub(other, ours, now)
        if now in tensors:
            twice.append(f"{now} is there under two names")
        tensors[now] = tensor
    if twice:
        raise CheckpointError(f"tensors are there twice:{listed(twice)}")
    return tensors


def renamed(stored: Mapping[str, Stored], architecture: Architecture, form: Form, config: Config) -> dict[str, Stored]:
    """The tensors of a network of the architecture, as its weights name them.

    Bare networks leave a prefix out, some files call tensors otherwise, and some repeat weights, have only the copy, or
    keep what follows from the configuration.

    Raises:
        CheckpointError: copies that differ from their originals, or a tensor under two names; all are listed.
    """
    prefix, copies = architecture.prefix, form.copies
    tensors = under_one_name(stored, architecture)
    if prefix and not any(name.startswith(prefix) for name in tensors):
        tensors = {name if name in copies else prefix + name: tensor for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(form.ignored)}
    wanted = {weight.theirs for weight in form.weights(config)}
    for copy, original in copies.items():
        if copy in tensors and copy not in wanted and original not in tensors:
            tensors[original] = tensors.pop(copy)
    repeated = {
        copy: copies[copy] for copy in copies if copy in tensors and copy not in wanted and copies[copy] in tensors
    }
    differing = [
        f"{copy} differs from {original}, which the configuration says it is"
        for copy, original in repeated.items()
        if not tensors[copy].read().equal(tensors[original].read())
    ]
    if differing:
        raise CheckpointError(f"copies of tensors are none:{listed(differing)}")
    return {name: tensor for name, tensor in tensors.items() if name not in repeated}
