"""A network of whatever attention in a folder of our own, which nothing else reads as something else.

network.json says what it is, model.safetensors has its weights, tokenizer.json its tokenizer, and manifest.json the
SHA-256 of each. There is no config.json: transformers would build softmax from it.
"""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from regard import specs
from regard.core.attention import Attention
from regard.core.errors import CheckpointError, UnsupportedError
from regard.files import consent
from regard.files.checksums import MANIFEST, Entry, entries
from regard.files.folders import load_folder
from regard.files.reading import content
from regard.integrations import folder as _folder
from regard.integrations._reading import of_file, stop_tokens
from regard.integrations._shape import Shape
from regard.integrations._tokenizer import tokenizer_from_json
from regard.integrations._writing import as_json, tokenizer_file
from regard.integrations.chat import ChatTemplate
from regard.integrations.published import PublishedModel
from regard.integrations.weights import Weight, fill, listed, undrawn

NETWORK = "network.json"
_FORMAT = 1
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def is_saved(folder: Path) -> bool:
    """Whether a folder is one of these, even if the file that says what is in it was lost."""
    try:
        return (folder / NETWORK).exists() or NETWORK.encode() in content(folder / MANIFEST)
    except OSError:
        return False


def files(loaded: PublishedModel) -> dict[str, bytes]:
    """The files of a network, by name; what they are read as has the same weights.

    Raises:
        UnsupportedError: another class of network, weights of 8 bits or of several types, or a network that is not what
            its configuration builds.
    """
    shape, tensors = Shape.of(loaded.model), {name: x.detach() for name, x in loaded.model.state_dict().items()}
    dtype = next(loaded.model.parameters()).dtype
    with undrawn():
        twin = shape.built().to(dtype)
    built, there = twin.state_dict(), _mechanisms(loaded.model)
    problems = [f"{name} is missing" for name in sorted(built.keys() - tensors.keys())]
    problems += [f"{name} is not of its configuration" for name in sorted(tensors.keys() - built.keys())]
    for name in built.keys() & tensors.keys():
        theirs, ours = ((tuple(x.shape), x.dtype) for x in (tensors[name], built[name]))
        if theirs != ours:
            problems.append(f"{name} is {theirs[0]} {theirs[1]}, and its configuration builds {ours[0]} {ours[1]}")
    problems += [f"{name} is another mechanism" for name, one in _mechanisms(twin).items() if there.get(name) != one]
    if problems or dtype not in _DTYPES.values():
        raise UnsupportedError(
            f"this {shape.kind.__name__} of {dtype} is not what its configuration builds:{listed(problems)}"
        )
    template = loaded.chat_template
    document = {
        "format": _FORMAT,
        **shape.document(),
        "dtype": str(dtype).removeprefix("torch."),
        "architecture": loaded.architecture,
        "stop_tokens": list(loaded.stop_tokens),
        "classes": list(loaded.classes),
        "sentence": dict(loaded.sentence),
        "tokenizer": loaded.tokenizer is not None,
        "tokenizer_settings": loaded.tokenizer_settings,
        "generation": loaded.generation,
        "chat_template": None if template is None else {"source": template.source, "tokens": dict(template.tokens)},
    }
    found = {
        NETWORK: as_json(document),
        _folder.WEIGHTS: safetensors.torch.save({name: x.contiguous() for name, x in tensors.items()}),
    }
    if loaded.tokenizer is not None:
        found[_folder.TOKENIZER] = tokenizer_file(loaded.tokenizer)
    return found


def _mechanisms(model: torch.nn.Module) -> dict[str, tuple[type, str]]:
    """The class of every mechanism of a network, and its options as text."""
    return {
        name: (type(module), module.spec_tag) for name, module in model.named_modules() if isinstance(module, Attention)
    }


def read(folder: Path, *, trust: bool) -> PublishedModel:
    """The network that `files` described.

    Raises:
        CheckpointError: a file is damaged, missing or of another format, or they do not fit together.
        ConfigError: an import path that is not trusted; nothing was imported.
        UnsafeFileError: as `regard.integrations.folder.inside`.
    """
    document, tokens = _verified(folder)
    where = str(folder / NETWORK)
    shape = Shape.read(document, where)
    consent.require(specs.paths(document["config"]), where, trust=trust)
    template = document["chat_template"]
    kept = {name: document[name] for name in ("sentence", "tokenizer_settings", "generation")}
    stops = stop_tokens(document["stop_tokens"], shape.config.vocab_size)
    tokenizer = None
    if tokens is not None:
        tokenizer = tokenizer_from_json(tokens, shape.config.vocab_size, str(folder / _folder.TOKENIZER))
    stored = _folder.tensors_of(folder / _folder.WEIGHTS)
    if max(shape.config.layers, getattr(shape.config, "encoder_layers", None) or 0) > len(stored):
        raise CheckpointError(f"{where} describes a larger network than {_folder.WEIGHTS} holds")
    with of_file(where), undrawn():
        model = shape.built().to(_DTYPES[document["dtype"]])
    fill(model, [Weight(name, name) for name in model.state_dict()], stored, str(folder))
    return PublishedModel(
        model.eval(),
        tokenizer,
        shape.config,
        stops,
        document["architecture"],
        folder,
        None if template is None else ChatTemplate(template["source"], template["tokens"], where),
        tuple(document["classes"]),
        **kept,
    )


def _verified(folder: Path) -> tuple[dict[str, Any], str | None]:
    """What the folder says that it is, and its tokenizer, once every file is the one that was written."""
    _folder.inside(folder, [MANIFEST, NETWORK, _folder.WEIGHTS])
    try:
        document = json.loads(load_folder(folder, only=[NETWORK])[NETWORK])
        if document["format"] != _FORMAT:
            raise CheckpointError(
                f"{folder / NETWORK} has format {document['format']!r}; this version of regard reads {_FORMAT}"
            )
        written = entries(_folder.read_json(folder, MANIFEST))
        written[_folder.WEIGHTS].require(Entry.at(folder / _folder.WEIGHTS), _folder.WEIGHTS)
        if not document["tokenizer"]:
            return document, None
        _folder.inside(folder, [_folder.TOKENIZER])
        return document, load_folder(folder, only=[_folder.TOKENIZER])[_folder.TOKENIZER].decode()
    except (KeyError, TypeError, ValueError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{folder} is damaged: {why}") from error
