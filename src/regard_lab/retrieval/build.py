"""A datastore of what a decoder makes of documents."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from regard.core.errors import CheckpointError, ConfigError, LimitError
from regard.models import LanguageModel
from regard.models.generate import evaluation
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import Text, digest
from regard_lab.retrieval.keys import joined, kept_keys, require_keys
from regard_lab.retrieval.manifest import require_datastore, unused


def build(
    model: LanguageModel,
    documents: Iterable[Text],
    folder: str | Path,
    *,
    origin: Mapping[str, str],
    length: int = 1024,
    add: bool = False,
    progress: Callable[[int], None] = lambda entries: None,
) -> Datastore:
    """The datastore {(f(x_1 ... x_t), x_(t+1))} of every token of the documents but the first of each.

    A document is read in windows of `length` that do not see each other, as evaluation reads it. A build that was
    interrupted goes on when it is given again with the same documents, and ends with the same bytes.

    Args:
        model: a decoder; its mode is put back afterwards.
        documents: in order; a document of one token has no entry.
        folder: a new or empty one; or that of an interrupted build.
        origin: what the datastore says of the model and the tokenizer (`regard_lab.retrieval.documents.origin`).
        length: tokens that are seen at most.
        add: to a datastore that is there and whole.
        progress: called with the number of entries after every window.

    Raises:
        ConfigError: the folder holds a whole datastore, and not `add`; or none, and `add`.
        CheckpointError: it was made by another model, is damaged, or its interrupted build had other documents.
        LimitError: windows longer than the model's positions. UnsupportedError: a model without keys.
        ResourceError: it cannot be written; what was written before is kept.

    Source: Khandelwal et al. 2020, Eq. 1.
    """
    if length < 1 or (model.limit is not None and length > model.limit):
        most = "" if model.limit is None else f", and at most the model's {model.limit} positions"
        raise LimitError(f"windows must have at least 1 token{most}; got {length}")
    require_keys(model)
    store = _opened(Path(folder), model, {**origin, "length": str(length)}, add)
    device = model.table.weight.device
    with store.adding(as_opened=True) as writer, evaluation(model), torch.inference_mode():
        for document in documents:
            ids = torch.from_numpy(document.ids.astype(np.int64))
            stored = writer.begin(document.name, entries=max(0, len(ids) - 1), digest=digest(document.ids))
            for first in range(stored - stored % length, len(ids) - 1, length):
                window = ids[first : first + length + 1]
                with kept_keys(model) as pieces:
                    model.hidden(window[None, :-1].to(device))
                skipped = max(0, stored - first)
                writer.append(joined(pieces)[0, skipped:].float(), window[1 + skipped :])
                progress(writer.entries)
    return Datastore.open(folder, checked=False)


def begun(folder: Path, *, add: bool, checked: bool = True) -> Datastore | None:
    """What a build goes on with; None: a new folder. Arguments and errors as `build` and `Datastore.open`."""
    if not add and unused(folder):
        return None
    if not add:
        require_datastore(folder)
    store = Datastore.open(folder, checked=checked, unfinished=True)
    if store.manifest.adding is None and len(store) and not add:
        raise ConfigError(
            f"{folder} is a whole datastore; say that it is to be added to (--add), or choose another name. An index "
            f"of it is made by regard knn index {quote(str(folder))}"
        )
    if store.manifest.adding is not None and bool(store.manifest.adding) != add:
        began = "an addition" if store.manifest.adding else "a build"
        raise ConfigError(f"{folder} holds {began} that was interrupted; finish that first, given as it was then")
    return store


def _opened(folder: Path, model: LanguageModel, origin: Mapping[str, str], add: bool) -> Datastore:
    store = begun(folder, add=add)
    if store is None:
        return Datastore.create(
            folder, model.config.dim, vocab_size=model.config.vocab_size, origin=origin, unfinished=True
        )
    store.require_origin(origin, model.config.dim)
    if store.manifest.vocab_size != model.config.vocab_size:
        raise CheckpointError(f"{folder} has {store.manifest.vocab_size} tokens, the model {model.config.vocab_size}")
    return store
