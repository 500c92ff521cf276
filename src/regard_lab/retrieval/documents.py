"""A document as a datastore knows it: by its token ids."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from regard.text.reader import Reader
from regard_lab.retrieval.datastore import Datastore
from regard_lab.tasks.corpus import Document

_NO_NUMBERS = ("attention_dropout", "checkpoint", "dropout", "mlp_chunks")
"""options of a model that change none of its numbers outside training"""


class Text(NamedTuple):
    """A document to build of: what it is called, and its token ids, with those that stand at its ends."""

    name: str
    ids: np.ndarray


def digest(ids: np.ndarray) -> str:
    """SHA-256 of token ids.

    Example:
        >>> digest(np.array([1, 2]))[:8]
        '34fb5c82'
    """
    return hashlib.sha256(np.ascontiguousarray(ids, "<i4").tobytes()).hexdigest()


def texts(documents: Iterable[Document], reader: Reader) -> Iterable[Text]:
    """Tokens of the documents of a corpus that are not empty, with their names."""
    return (Text(document.name, reader.document(document.text).ids) for document in documents if document.text)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model: its options, and the name, kind and bytes of every weight, wherever they are.

    Options at their default are left out, so that it is the same one when a later version has more of them.
    """
    config: Any = getattr(model, "config", None)
    options = {each.name: (getattr(config, each.name), each.default) for each in (fields(config) if config else ())}
    said = {name: value for name, (value, default) in options.items() if value != default and name not in _NO_NUMBERS}
    found = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return found.hexdigest()


def tokenizer_digest(reader: Reader) -> str:
    """SHA-256 of a tokenizer."""
    return hashlib.sha256(reader.to_json().encode()).hexdigest()


def origin(model: nn.Module, reader: Reader | None) -> Mapping[str, str]:
    """What made the keys: model and tokenizer."""
    made = {"model": fingerprint(model)}
    if reader is not None:
        made["tokenizer"] = tokenizer_digest(reader)
    return made


def other_windows(store: Datastore, length: int) -> str:
    """That text in windows of `length` is read otherwise than a datastore's was; empty: it is not, or nobody knows."""
    built = store.manifest.origin.get("length", "")
    if not built.isdecimal() or not int(built) or int(built) == length:
        return ""
    return (
        f"{store.folder} was built in windows of {built} tokens, and this text is read in windows of {length}: the "
        "same tokens have other keys, and so other neighbours, than in its own windows. For the same ones, use windows "
        f"of {built} tokens here, or build one with --length {length}"
    )
