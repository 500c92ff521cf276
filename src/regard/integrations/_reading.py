"""Published networks from the files that they come in."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from regard.core.errors import CheckpointError, ConfigError, UnsupportedError
from regard.integrations import _sentence, architectures, chat
from regard.integrations import folder as _folder
from regard.integrations._gguf import read_gguf
from regard.integrations._tokenizer import gguf_ends, tokenizer_from_gguf, tokenizer_from_json
from regard.integrations.architectures import Architecture, Config, Form
from regard.integrations.published import PublishedModel
from regard.integrations.weights import Settings, fill, listed, noted, undrawn
from regard.models import Classifier


def from_gguf(path: Path, ignore: Sequence[str]) -> PublishedModel:
    """The network in a GGUF file; errors as `regard.integrations.pretrained.load`."""
    metadata, tensors = read_gguf(path)
    name = metadata.get("general.architecture")
    kept = {one.name: (one, one.gguf) for one in architectures.every() if one.gguf is not None}
    if not isinstance(name, str) or name not in kept:
        raise UnsupportedError(f"{path} holds the architecture {name!r}; from GGUF regard loads {', '.join(kept)}")
    architecture, gguf = kept[name]
    named = {f"{name}.{key}": setting for setting, key in gguf.keys.items()}
    tokens = metadata.get("tokenizer.ggml.tokens")
    values: dict[str, object] = {"vocab_size": len(tokens) if isinstance(tokens, list) else None}
    values |= {
        named.get(key, key.removeprefix(f"{name}.")): x for key, x in metadata.items() if key.startswith(f"{name}.")
    }
    values["tie_word_embeddings"] = "output.weight" not in tensors
    settings = Settings(values, str(path), tensors, ignore)
    gguf.check(settings)
    config = _configured(architecture, settings)
    problems: list[str] = []
    tokenizer, stops, template = None, (), None
    with noted(problems):
        tokenizer = tokenizer_from_gguf(metadata, config.vocab_size, str(path))
    with noted(problems):
        template = chat.from_gguf(metadata, path)
    with noted(problems):
        stops = stop_tokens(gguf_ends(metadata), config.vocab_size)
    model = _built(architecture.forms[0], config, settings)
    fill(model, gguf.weights(config), tensors, str(path), problems)
    tokens = chat.special_tokens(metadata)
    return PublishedModel(model.eval(), tokenizer, config, stops, name, path, template, tokenizer_settings=tokens)


def from_folder(folder: Path, ignore: Sequence[str]) -> PublishedModel:
    """The network in a Hugging Face folder; errors as `regard.integrations.pretrained.load`."""
    values = _folder.published(folder)
    beside = _folder.read_json(folder, _folder.GENERATION) if (folder / _folder.GENERATION).exists() else {}
    if values.get("decoder_start_token_id") is None:
        values["decoder_start_token_id"] = beside.get("decoder_start_token_id")
    where = str(folder / _folder.CONFIG)
    architecture = architectures.by_name(values.get("model_type"), where)
    stored = _folder.read_tensors(folder)
    settings = Settings(values, where, stored, ignore)
    form = architecture.form(settings)
    config = _configured(architecture, settings)
    problems: list[str] = []
    tokenizer, stops, template, described = None, (), None, _folder.tokenizer_settings(folder)
    with noted(problems):
        template = chat.from_folder(folder)
    with noted(problems):
        if (folder / _folder.TOKENIZER).exists():
            tokenizer = tokenizer_from_json(
                _folder.read_text(folder, _folder.TOKENIZER),
                config.vocab_size,
                str(folder / _folder.TOKENIZER),
                described,
            )
    sentence: dict[str, Any] = {}
    with noted(problems):
        sentence = _sentence.files(folder)
    with noted(problems):
        stops = stop_tokens(beside.get("eos_token_id", values.get("eos_token_id")), config.vocab_size)
    with noted(problems):
        stored = form.made(_folder.renamed(stored, architecture, form, config), config, settings)
    model, classes = _built(form, config, settings), ()
    with noted(problems):
        classes = _classes(settings.values.get("id2label")) if isinstance(model, Classifier) else ()
    fill(model, form.weights(config), stored, str(folder), problems, form.derived)
    ids = {setting: at for setting, at in values.items() if setting.endswith("_token_id") and at is not None}
    return PublishedModel(
        model.eval(),
        tokenizer,
        config,
        stops,
        architecture.name,
        folder,
        template,
        classes,
        sentence,
        described,
        ids | beside,
    )


def _classes(labels: object) -> tuple[str, ...]:
    """Names of classes, by number."""
    if not isinstance(labels, dict):
        return ()
    found = [labels.get(str(at)) for at in range(len(labels))]
    names = tuple(name for name in found if isinstance(name, str))
    if len(names) < len(found):
        raise CheckpointError(f"id2label must have a text for each number from 0 to {len(labels) - 1}")
    return names


@contextmanager
def of_file(where: str) -> Iterator[None]:
    """What no configuration may say is said of the file that says it.

    Raises:
        CheckpointError: for a ConfigError inside.
    """
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{where}: the configuration is not one that can be run: {error}") from error


def _configured(architecture: Architecture, settings: Settings) -> Config:
    with of_file(settings.where):
        return architecture.config(settings)


def _built(form: Form, config: Config, settings: Settings) -> nn.Module:
    """The network, without weights."""
    with of_file(settings.where), undrawn():
        return form.model(config) if form.build is None else form.build(config, settings)


def stop_tokens(value: object, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a text: a list, one, or None. Warns of ids that the network has no row for, and leaves them out.

    Raises:
        CheckpointError: some are no integers; all of them are listed.
    """
    given = value if isinstance(value, list) else [] if value is None else [value]
    ids = [at for at in given if type(at) is int]
    if len(ids) < len(given):
        wrong = listed(f"{at!r} is no token id" for at in given if type(at) is not int)
        raise CheckpointError(f"eos_token_id must be integers:{wrong}")
    if beyond := [at for at in ids if not 0 <= at < vocab_size]:
        warnings.warn(f"eos_token_id {beyond} is outside 0 to {vocab_size - 1}: it never ends a text", stacklevel=2)
    return tuple(dict.fromkeys(at for at in ids if at not in beyond))
