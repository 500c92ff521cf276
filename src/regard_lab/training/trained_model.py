"""A trained model, ready for use: what it does with a text or an image follows from what it was trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from regard.core.errors import ConfigError, InputError, LimitError, ShapeError, kind_of
from regard.core.types_of import typed
from regard.models import Classifier, EncoderDecoder, LanguageModel, MaskedLanguageModel
from regard.models.beam import beam_search
from regard.models.generate import evaluation, generate
from regard.models.pixels import sample
from regard.models.sampling import Sampling
from regard.text.reader import Reader
from regard.text.tokenizer import Tokenizer
from regard_lab.tasks.base import Example
from regard_lab.tasks.classification import Patches, Texts
from regard_lab.tasks.config import ClassificationConfig, ImagesConfig, MaskedConfig, SuperResolutionConfig
from regard_lab.tasks.pixels import Grid, sources
from regard_lab.tasks.sentences import in_front, sentence_numbers
from regard_lab.training.batches import Batch, collate
from regard_lab.training.config import RunConfig
from regard_lab.training.network import Labels, Network

MASK = "[MASK]"
"""The text that stands for a hidden token in what `TrainedModel.fill` takes."""
BEAMS = 4
LENGTH_PENALTY = 0.6
"""Of beam search: Vaswani et al. 2017, section 6.1."""
_DOES = {
    "text": "generate",
    "masked": "fill",
    "classification": "classify",
    "translation": "translate",
    "images": "draw",
    "super_resolution": "draw",
}


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with what it needs to read and write. tokenizer: None for tasks without text. labels: of classes.
    grid: of images. stop_tokens: ids that end a text, of the weights that the training started from. checkpoint:
    the folder that the weights were read from. data: fingerprint of what it was trained on.

    Which method works is the task's: `generate` after text, `translate` after translation, `classify` after
    classification, `fill` after masked, `draw` after images and super_resolution.
    """

    model: Network
    tokenizer: Reader | None
    config: RunConfig
    path: Path
    step: int
    labels: Labels | None = None
    grid: Grid | None = None
    stop_tokens: tuple[int, ...] = ()
    checkpoint: Path | None = None
    data: str = ""

    @typed
    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: tuple[str, ...] = (),
    ) -> str:
        """Continue a text; the continuation alone. Options as `regard.models.generate`.

        Raises:
            ConfigError: the run's task does not continue text.
        """
        if not isinstance(self.model, LanguageModel) or self.tokenizer is None:
            self._refuse("continue text")
        if not isinstance(prompt, str):
            raise InputError(f"generate continues one text, got {kind_of(prompt)}; call it once for each")
        rows = generate(
            self.model,
            [prompt],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            stop_tokens=self.stop_tokens,
            tokenizer=self.tokenizer,
        )
        return rows[0].text

    @typed
    def translate(
        self,
        sentences: Sequence[str],
        *,
        beams: int = BEAMS,
        length_penalty: float = LENGTH_PENALTY,
        max_new_tokens: int | None = None,
        batch_size: int = 16,
    ) -> list[str]:
        """The best translation that beam search finds of each sentence.

        Args:
            sentences: in the source language; sentences of like length share a batch.
            beams: as `beam_search`; 1: greedy.
            length_penalty: its `alpha`.
            max_new_tokens: longest translation; None: as long as those that the run was trained on.
            batch_size: sentences at a time.

        Raises:
            ConfigError: the run's task is not translation, or an option is out of range.
            InputError: an empty sentence. LimitError: one longer than those that the run was trained on.
        """
        if not isinstance(self.model, EncoderDecoder) or not isinstance(self.tokenizer, Tokenizer):
            self._refuse("translate")
        if isinstance(sentences, str):
            raise ConfigError("translate takes a list of sentences; put the one in brackets")
        if not isinstance(sentences, Sequence):
            raise InputError(f"translate takes a list of sentences, got {kind_of(sentences)}")
        ids = [self._ids(f"sentence {at}", text, room=1) for at, text in enumerate(sentences, 1)]
        return translations(
            self.model,
            [np.append(row, self.tokenizer.separator) for row in ids],
            self.tokenizer,
            max_new_tokens=self._length if max_new_tokens is None else max_new_tokens,
            beams=beams,
            length_penalty=length_penalty,
            batch_size=batch_size,
        )

    @typed
    def classify(self, given: str | UInt8[np.ndarray, "height width *channels"]) -> dict[str, float]:
        """The probability of every class of a text or an image, the most probable one first.

        A text longer than the run's examples is read in pieces, whose probabilities are averaged.

        Raises:
            ConfigError: the run's task is not classification, or not of what is given.
            InputError: an empty text. ShapeError: an image unlike those that the run was trained on.
        """
        if not isinstance(self.model, Classifier) or self.labels is None:
            self._refuse("classify")
        if isinstance(given, str) != (self.tokenizer is not None):
            reads = "text" if self.tokenizer is not None else "images, as arrays of bytes"
            raise ConfigError(f"{self.path} was trained on {reads}; give it one of these")
        if isinstance(given, str):
            assert isinstance(self.tokenizer, Tokenizer)
            ids = self._ids("the text", given)
            task = self.config.task
            assert isinstance(task, ClassificationConfig)
            examples = Texts.cut([ids], [0], task.length, self.tokenizer, summaries=task.summaries)
        else:
            examples = self._patches(given, self.labels)
        config, total = self.model.encoder.config, torch.zeros(len(self.labels.classes), dtype=torch.float64)
        with evaluation(self.model), torch.no_grad():
            for at in range(len(examples)):
                batch = collate(examples, [at], config.vocab_size, num_targets=len(total)).to(self._device)
                total += batch.through(self.model).logits[0].cpu().double().softmax(-1)
        named = zip(self.labels.classes, (total / len(examples)).tolist(), strict=True)
        return dict(sorted(named, key=lambda one: -one[1]))

    def fill(self, text: str) -> str:
        """A text with every `[MASK]` replaced by one token, the likeliest first, each given those before.

        Under the tokenizer of bytes a token is one byte.

        Raises:
            ConfigError: the run's task is not masked.
            InputError: a text without a mask. LimitError: one longer than those that the run was trained on.
        """
        if not isinstance(self.model, MaskedLanguageModel) or not isinstance(self.tokenizer, Tokenizer):
            self._refuse("fill in masks")
        if not isinstance(text, str):
            raise InputError(f"fill takes one text, got {kind_of(text)}")
        parts = text.split(MASK)
        if len(parts) == 1:
            raise InputError(
                f"the text has no {MASK}, so there is nothing to fill in; write one for every hidden token"
            )
        hidden = self.tokenizer.vocab_size  # as `MaskedTask.mask`
        ids = [self.tokenizer.encode(part) for part in parts]
        tokens = torch.tensor([token for part in ids for token in (hidden, *part)][1:])
        self._require_room("the text", len(tokens))
        task = self.config.task
        assert isinstance(task, MaskedConfig)
        summaries = task.summaries or 0
        with evaluation(self.model), torch.no_grad():
            while (positions := (tokens == hidden).nonzero()[:, 0]).numel():
                logits = self._hidden_logits(tokens.numpy(), hidden, summaries)[positions]
                logits[:, [self.tokenizer.separator, *range(hidden, logits.shape[1])]] = -torch.inf
                best: Tensor = logits.log_softmax(-1).amax(-1).argmax()
                tokens[positions[best]] = logits[best].argmax()
        return self.tokenizer.decode(tokens.numpy())

    def _hidden_logits(
        self, tokens: Int64[np.ndarray, "length"], hidden: int, summaries: int
    ) -> Float64[Tensor, "length vocab"]:
        """Logits of every token, behind tokens for their sentences where the run had these."""
        assert isinstance(self.tokenizer, Tokenizer)
        inputs, marks = tokens, None
        if summaries:
            seen = np.where(tokens == hidden, self.tokenizer.separator, tokens)  # a hidden token ends no sentence
            inputs, marks = in_front(tokens, sentence_numbers(seen, self.tokenizer, summaries), hidden + 1)
        tensors = [None if x is None else torch.from_numpy(x)[None] for x in (inputs, marks)]
        assert tensors[0] is not None
        batch = Batch([0], tensors[0], torch.zeros(1, 1, dtype=torch.long), None, [0], [0], marks=tensors[1])
        return batch.to(self._device).through(self.model).logits[0, len(inputs) - len(tokens) :].cpu().double()

    @typed
    def draw(
        self,
        count: int | None = None,
        *,
        upper: UInt8[np.ndarray, "count rows width channels"] | None = None,
        small: UInt8[np.ndarray, "count rows columns channels"] | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        use_state: bool = True,
    ) -> UInt8[np.ndarray, "count height width channels"]:
        """New images.

        Args:
            count: how many; None: one, or as many as are given.
            upper: the upper rows of each, which are kept and continued; None: nothing is given.
            small: the image that each starts from, after super_resolution, as `regard_lab.tasks.pixels.reduced` makes
            them. temperature, top_k, top_p: as `regard.models.sampling.Sampling`.
            seed: of the draws; an image depends on it and its number, not on the others.
            use_state: as `regard.models.pixels.sample`.

        Raises:
            ConfigError: the run's task is not of pixels, small images where it reads none, or none where it does; upper
                rows that are not generated before the others.
            ShapeError: images of another shape than those that the run was trained on, or of unequal number.
        """
        if self.grid is None or not isinstance(self.model, LanguageModel | EncoderDecoder):
            self._refuse("draw images")
        grid = self.grid
        if (small is not None) != isinstance(self.model, EncoderDecoder):
            reads = "none" if small is not None else "them; give small="
            raise ConfigError(f"{self.path} was trained on {self.config.task.name}, which reads small images: {reads}")
        numbers = {len(x) for x in (upper, small) if x is not None} | (set() if count is None else {count})
        if len(numbers) > 1 or min(numbers, default=1) < 1:
            raise ShapeError(f"as many images must be drawn as are given, and at least 1; got {sorted(numbers)}")
        rows = min(numbers, default=1)
        beginning = source = None
        if upper is not None:
            whole = np.zeros((rows, grid.height, *upper.shape[2:]), upper.dtype)
            known = grid.upper(upper.shape[1])
            whole[:, : upper.shape[1]] = upper
            beginning = torch.from_numpy(grid.sequences(whole)[:, :known])
        if small is not None:
            assert isinstance(self.config.task, SuperResolutionConfig)
            source = torch.from_numpy(sources(small, grid.smaller(self.config.task.factor)))
        drawn = sample(
            self.model,
            rows=rows,
            start=grid.start,
            offsets=torch.from_numpy(grid.offsets),
            given=beginning,
            source=source,
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
            seed=seed,
            use_state=use_state,
        )
        return grid.images(drawn.numpy())

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _length(self) -> int:
        """Most tokens of an example of text."""
        task = self.config.task
        assert not isinstance(task, ImagesConfig)
        return task.length

    def _ids(self, who: str, text: str, *, room: int = 0) -> Int64[np.ndarray, "length"]:
        """The tokens of a text that is not empty; with `room`, one that is as long as training was, so many left."""
        assert self.tokenizer is not None
        if not isinstance(text, str):
            raise InputError(f"{who} must be a text, got {kind_of(text)}")
        if not text.strip():
            raise InputError(f"{who} is empty: give some text")
        ids = self.tokenizer.encode(text)
        if room:
            self._require_room(who, len(ids) + room)
        return ids

    def _require_room(self, who: str, length: int) -> None:
        if length > self._length:
            raise LimitError(
                f"{who} takes {length} tokens, and {self.path} was trained on at most {self._length}; "
                "cut it, or train with a larger --task.length"
            )

    def _patches(self, image: np.ndarray, labels: Labels) -> Patches:
        images = np.asarray(image)[None]
        size = labels.patch
        right = images.dtype == np.uint8 and images.ndim in (3, 4) and not any(x % size for x in images.shape[1:3])
        if right:
            patches = Patches(images, np.zeros(1, np.int64), size, labels.mean, labels.deviation)
            first: Example = patches[0]
            if first.inputs.shape == (labels.patches, self.model.encoder.config.input_dim):  # type: ignore[union-attr]
                return patches
        raise ShapeError(
            f"{self.path} reads images of {labels.patches} patches of {size} x {size}, bytes (height, width) or "
            f"(height, width, channels), got {images.dtype} {images.shape[1:]}"
        )

    def _refuse(self, what: str) -> NoReturn:
        task = self.config.task.name
        if task not in _DOES:
            raise ConfigError(f"{self.path} was trained on {task}, which has no text; use `.model` with token ids")
        raise ConfigError(f"{self.path} was trained on {task}, so it cannot {what}; use `.{_DOES[task]}`")


def translations(
    model: EncoderDecoder,
    sources: Sequence[Int64[np.ndarray, "length"]],
    tokenizer: Tokenizer,
    *,
    max_new_tokens: int,
    beams: int = BEAMS,
    length_penalty: float = LENGTH_PENALTY,
    batch_size: int = 16,
) -> list[str]:
    """The best translation that beam search finds of each source, which ends in the separator; arguments as
    `TrainedModel.translate`. Sources of like length share a batch.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    texts: dict[int, str] = {}
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        searched = beam_search(
            model,
            [sources[row] for row in rows],
            max_new_tokens=max_new_tokens,
            beams=beams,
            alpha=length_penalty,
        )
        for row, (best, *_) in zip(rows, searched, strict=True):
            tokens = best.tokens.numpy()
            texts[row] = tokenizer.decode(tokens[:-1] if best.ended == "stop" else tokens)
    return [texts[row] for row in range(len(sources))]
