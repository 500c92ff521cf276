"""Masked language modelling: guess hidden tokens of a text from both sides."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int64

from regard.core.errors import ConfigError
from regard.text.tokenizer import Tokenizer
from regard_lab.tasks.base import IGNORE, Example, Split, Task
from regard_lab.tasks.config import MaskedConfig
from regard_lab.tasks.sentences import in_front, sentence_numbers
from regard_lab.tasks.stored_windows import StoredWindows
from regard_lab.tasks.text import TextTask, Windows


class MaskedTask(Task):
    """Masked language modelling on text.

    A window is `length` tokens of a document, its end included; every token is in one window. Of its n tokens that are
    text, max(1, round(rate n)) are chosen, all sets of that size being equally likely. A chosen token becomes the mask
    with probability 0.8, a random token with 0.1, and stays with 0.1; the model predicts what it was. Everything is
    drawn from hash(seed, epoch, index) in training, and from hash(split, index) elsewhere: runs of any seed are
    evaluated on the same masks.

    With `summaries`, a window has a token `summary` in front for every sentence, and marks that say whose it is; of the
    sentences max(1, round(hidden_sentences n)) are hidden as a whole and told in `Example.contents` alone, where there
    is more than one.

    The mask is one more token, `mask`, after those of the tokenizer, and `summary` the next. Random tokens are any but
    the separator and these. `Example.nbytes` counts the bytes of the chosen tokens, so bits per byte does not depend on
    the tokenizer's numbering, but, unlike that of text, does depend on its tokens: longer ones hide more at once.

    Args:
        config: corpus, tokenizer, length, rate.
        seed: of the training masks.
        tokenizer: an earlier run's, instead of the one that the configuration describes.

    Raises:
        DataError, ConfigError, ResourceError: as `TextTask`.

    Example:
        >>> task = MaskedTask(MaskedConfig(corpus="song_ci", length=128))  # doctest: +SKIP
        >>> (task.examples("valid")[0].targets != IGNORE).mean()  # doctest: +SKIP
        0.15

    Source: Devlin et al. 2019, section 3.1, task 1 and appendix A.1; drawn anew in every epoch as in RoBERTa (Liu et
    al. 2019, section 4.1). Sentences: Ainslie et al. 2020, section 3.4.
    """

    name: ClassVar[str] = "masked"
    metric: ClassVar = "bits_per_byte"

    def __init__(self, config: MaskedConfig, *, seed: int = 0, tokenizer: Tokenizer | None = None):
        self.config, self.seed = config, seed
        self.text = TextTask(config, tokenizer=tokenizer)
        if not isinstance(self.text.tokenizer, Tokenizer):
            raise ConfigError(
                f"task masked needs a token that no text can hold, and the {self.text.tokenizer.kind} tokenizer of "
                f"{config.corpus} has none: build the store with --tokenizer bytes or bpe"
            )
        self.tokenizer: Tokenizer = self.text.tokenizer
        self.summaries, self.hidden = config.summaries or 0, config.hidden_sentences or 0.0
        self.length = config.length + self.summaries
        self.mask, self.summary = self.tokenizer.vocab_size, self.tokenizer.vocab_size + 1
        self.vocab_size = self.mask + 1 + (self.summaries > 0)
        described = f"{self.text.fingerprint} rate={config.rate} seed={seed}"
        if self.summaries:
            described += f" summaries={self.summaries} hidden={self.hidden}"
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()[:32]

    def examples(self, split: Split) -> "MaskedWindows":
        return MaskedWindows(self, split, self.text.examples(split))


@dataclass(frozen=True)
class MaskedWindows:
    """The windows of a split, with tokens hidden."""

    task: MaskedTask
    split: Split
    windows: Windows | StoredWindows

    @property
    def streamed(self) -> bool:
        """As `Examples` may say."""
        return isinstance(self.windows, StoredWindows)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Example:
        return self.redrawn(index, 0)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def redrawn(self, index: int, epoch: int) -> Example:
        """The window with the masks of an epoch; validation and test have the same ones in every epoch."""
        task, window = self.task, self.windows[index]
        tokens = window.targets[window.targets != IGNORE]  # what a window of text predicts is its tokens, each once
        name = f"{task.seed}/{epoch}/{index}" if self.split == "train" else f"{self.split}/{index}"
        draw = np.random.default_rng(_key(name))
        contents, numbers = np.full_like(tokens, IGNORE), None
        if task.summaries:
            numbers = sentence_numbers(tokens, task.tokenizer, task.summaries)
            hidden_sentences = self._hidden(numbers, draw)
            contents[hidden_sentences] = tokens[hidden_sentences]
        candidates = np.flatnonzero((tokens != task.tokenizer.separator) & (contents == IGNORE))
        if candidates.size == 0:  # nothing but the end of a document, in a window of its own
            candidates = np.flatnonzero(contents == IGNORE)
        chosen = draw.choice(candidates, max(1, round(task.config.rate * candidates.size)), replace=False)
        random = draw.integers(task.mask - 1, size=chosen.size)
        random += random >= task.tokenizer.separator
        kind = draw.random(chosen.size)
        inputs, targets = tokens.copy(), np.full_like(tokens, IGNORE)
        targets[chosen] = tokens[chosen]
        inputs[chosen] = np.where(kind < 0.8, task.mask, np.where(kind < 0.9, random, tokens[chosen]))
        inputs[contents != IGNORE] = task.mask
        example = Example(inputs, targets, window.document, int(task.tokenizer.sizes[tokens[chosen]].sum()))
        if numbers is None:
            return example
        inputs, marks = in_front(inputs, numbers, task.summary)
        nothing = np.full(len(inputs) - len(tokens), IGNORE)
        return example._replace(
            inputs=inputs,
            targets=np.concatenate([nothing, targets]),
            marks=marks,
            contents=np.concatenate([nothing, contents]) if task.hidden else None,
        )

    def _hidden(self, numbers: Int64[np.ndarray, "tokens"], draw: np.random.Generator) -> Bool[np.ndarray, "tokens"]:
        """The tokens of the sentences that are hidden as a whole; one sentence at least is not."""
        named = np.unique(numbers)
        if not self.task.hidden or named.size < 2:
            return np.zeros(numbers.shape, bool)
        count = min(max(1, round(self.task.hidden * named.size)), named.size - 1)
        return np.isin(numbers, draw.choice(named, count, replace=False))


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"masked/{name}".encode(), digest_size=16).digest(), "little")
