"""How well a published network predicts text: perplexity and bits per byte, with its own tokenizer."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import cast

import numpy as np

from regard.core.errors import ConfigError, DataError, InputError, LimitError, NumericsError, UnsupportedError, nearest
from regard.integrations.published import PublishedModel
from regard.text.reader import Encoded, Reader
from regard_lab.tasks.base import Example, Split
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.training.evaluation import Forward, require_finite, score, straight

_MOST_NATS = math.log(sys.float_info.max)


class Windows:
    """Documents cut into windows of `length` targets that never cross from one document to the next.

    A document is what the tokenizer makes of its text by default. Window k predicts its tokens k length + 1 ...
    (k + 1) length, each from the ones before it in the window, so the first token of a text is not predicted unless the
    tokenizer puts another one before it.

    Args:
        documents: encoded texts.
        length: targets in a window; the last one of a document has what is left.

    Raises:
        ConfigError: a length below 1. DataError: no document of two tokens.
    """

    def __init__(self, documents: Sequence[Encoded], length: int) -> None:
        if length < 1:
            raise ConfigError(f"windows must have at least 1 token, got {length}")
        self._documents, self._length = documents, length
        self._starts = [(at, start) for at, one in enumerate(documents) for start in range(0, len(one.ids) - 1, length)]
        if not self._starts:
            raise DataError("no document has two tokens, so there is nothing to predict")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Example:
        document, start = self._starts[index]
        ids, nbytes = (x[start : start + self._length + 1] for x in self._documents[document])
        return Example(ids[:-1], ids[1:], document, int(nbytes[1:].sum()))

    def place(self, index: int) -> tuple[np.ndarray, int]:
        """The token ids of the document that a window is of, and the place of the window's first target in it."""
        document, start = self._starts[index]
        return self._documents[document].ids, start + 1


def windows(texts: Sequence[str], reader: Reader, length: int) -> Windows:
    """Texts as `evaluate` reads them; errors as `Windows`."""
    return Windows([reader.document(text) for text in texts], length)


def evaluate(
    loaded: PublishedModel,
    text: TextConfig,
    *,
    document: str | None = None,
    split: Split | None = None,
    batch_size: int = 1,
    limit: int = 0,
    parts: bool = False,
    forward: Forward = straight,
) -> dict[str, object]:
    """How well the network predicts a corpus.

    Args:
        loaded: the network, a decoder, and its tokenizer.
        text: corpus and length of a window.
        document: only the documents of this group: for state_of_the_union, a year.
        split: train, valid or test, as runs split the corpus; None: all of it, because the network was trained on other
            text.
        batch_size: windows at a time.
        limit: as many windows, evenly spaced (one: the first); 0: all.
        parts: a file of text is three documents, as a datastore of it has them, and not one.
        forward: as `regard_lab.training.evaluation.score`.

    Returns:
        As `regard_lab.training.evaluate`, and `perplexity`, e to the nats per token; None where that is too large.

    Raises:
        ConfigError: a document that the corpus has not. DataError, InputError: as the corpus and the tokenizer.
        UnsupportedError: the network continues no texts. LimitError: windows longer than its positions.
        NumericsError: a loss that is not finite.
    """
    if batch_size < 1 or limit < 0:
        raise ConfigError(f"batch_size must be at least 1 and limit at least 0 (all), got {batch_size} and {limit}")
    model = loaded.decoder
    if model.limit is not None and text.length > model.limit:
        raise LimitError(f"windows of {text.length} tokens are longer than the network's {model.limit} positions")
    corpus = open_corpus(text)
    documents = list(corpus.parse()) if parts or split is not None else corpus.documents()
    if split is not None:
        split_of = corpus.splits(text.holdout)
        documents = [one for one in documents if split_of[one.group] == split]
    if document is not None:
        known = {one.name for one in documents}
        documents = [one for one in documents if one.name == document]
        if not documents:
            raise ConfigError(f"{text.corpus} has no document {document!r}: {nearest(document, known)}")
    examples = windows([one.text for one in documents], loaded.reader, text.length)
    device = next(model.parameters()).device
    scores = score(
        model,
        examples,
        model.config.vocab_size,
        batch_size=batch_size,
        device=device,
        limit=limit,
        forward=forward,
    )
    assert scores is not None
    require_finite(scores, "the network", "fetch its weights again")
    summary = scores.summary()
    nats = scores.total.nats / scores.total.tokens
    perplexity = math.exp(nats) if nats < _MOST_NATS else None
    return {
        "split": split or "all",
        "task": "text",
        "perplexity": perplexity,
        **summary,
        "documents": scores.table(),
    }


def rise(before: PublishedModel, after: PublishedModel) -> str | None:
    """The losses of two networks on a sample of text, in words; None if it hardly rises, "" if they continue no
    texts."""
    with suppress(ConfigError, DataError, InputError, NumericsError, UnsupportedError):
        text = TextConfig(length=min(256, after.config.max_length))
        results = (evaluate(one, text, document="1863", limit=1)["nats_per_token"] for one in (before, after))
        old, new = cast("Iterator[float]", results)
        return f" ({text.length} tokens of English: {old:.2f} nats each, now {new:.2f})" if new > old + 0.1 else None
    return ""
