"""Small language models of the letters of the bundled addresses."""

import re
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._training import own_losses, trained
from regard.models import LanguageModel
from regard_lab.tasks.base import Split
from regard_lab.tasks.config import TextConfig, TranslationConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.tasks.translation import TranslationTask

LETTERS = 27
"""a to z, and one for whatever is between words: the alphabet of text8"""


def with_exits(model: LanguageModel, draw: torch.Generator, *, batch: int, length: int, **training: Any) -> list[float]:
    """Trains a decoder and its exits, if it has any, on letters; the nats of its last exit in every step."""

    def loss() -> tuple[Tensor, Tensor]:
        text = samples("train", batch, length, draw)
        got = model(text[:, :-1], **({} if model.config.depth == "fixed" else {"targets": text[:, 1:]}))
        return cross_entropy(got.logits.mT, text[:, 1:]), own_losses(model, got.losses)

    return trained(model, loss, **training)


@cache
def text(split: str) -> Tensor:
    """The bundled addresses of a split, one after another, in lower-case letters and single spaces."""
    corpus = open_corpus(TextConfig())
    splits = corpus.splits(TextConfig().holdout)
    joined = " ".join(document.text for document in corpus.parse() if splits[document.group] == split)
    return _letters(joined)


@cache
def verses(split: Split) -> Tensor:
    """The bundled English verses of a split, as `text`; whole books are held out."""
    task = TranslationTask(TranslationConfig(tokenizer="bytes", length=4096))
    return _letters(" ".join(pair.source for pair in task.examples(split).pairs))


def _letters(characters: str) -> Tensor:
    letters = re.sub("[^a-z]+", "`", characters.lower())  # the character before "a"
    return torch.from_numpy(np.frombuffer(letters.encode(), np.uint8).astype(np.int64) - ord("`"))


def samples(split: str, count: int, length: int, draw: torch.Generator) -> Tensor:
    """(count, length + 1) letters from anywhere."""
    letters = text(split)
    begin = torch.randint(0, len(letters) - length, (count, 1), generator=draw)
    return letters[begin + torch.arange(length + 1)]
