"""How good a model is on a split: nats per token, bits per byte, accuracy, and their sums for every document."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.core.errors import ConfigError, DataError, NumericsError
from regard.core.precision import accumulation_dtype
from regard_lab.tasks.base import IGNORE, Examples
from regard_lab.training.batches import Batch, collate
from regard_lab.training.carried import Next, reading


@dataclass
class Sums:
    """Totals over some targets."""

    nats: float = 0.0
    tokens: int = 0
    correct: int = 0
    nbytes: int = 0

    def add(self, nats: float, tokens: int, correct: int, nbytes: int) -> None:
        self.nats += nats
        self.tokens += tokens
        self.correct += correct
        self.nbytes += nbytes

    def summary(self) -> dict[str, float | None]:
        """nats_per_token, bits_per_byte (None where the targets stand for no bytes), accuracy.

        bits_per_byte = nats / (ln 2 . bytes): the average code length of the text, whatever its tokens are.
        """
        return {
            "nats_per_token": self.nats / self.tokens,
            "bits_per_byte": self.nats / math.log(2) / self.nbytes if self.nbytes else None,
            "accuracy": self.correct / self.tokens,
        }


@dataclass
class Scores:
    """Totals of a split, and of each of its documents, from which a bootstrap over documents is drawn."""

    total: Sums = field(default_factory=Sums)
    documents: dict[int, Sums] = field(default_factory=dict)

    def include(self, other: "Scores") -> None:
        """Add the scores of other examples."""
        for into, sums in (
            (self.total, other.total),
            *((self.documents.setdefault(n, Sums()), x) for n, x in other.documents.items()),
        ):
            into.add(sums.nats, sums.tokens, sums.correct, sums.nbytes)

    def summary(self, metric: str = "accuracy") -> dict[str, float | int | None]:
        """The scores for metrics.jsonl; of a task measured by it, bits_per_dimension = nats per target / ln 2."""
        values = self.total.summary()
        if metric == "bits_per_dimension":
            values["bits_per_dimension"] = self.total.nats / self.total.tokens / math.log(2)
        return {**values, "tokens": self.total.tokens, "bytes": self.total.nbytes}

    def table(self) -> dict[str, list[float] | list[int]]:
        """The documents as columns: document, nats, tokens, correct, bytes."""
        rows = sorted(self.documents.items())
        return {
            "document": [document for document, _ in rows],
            "nats": [sums.nats for _, sums in rows],
            "tokens": [sums.tokens for _, sums in rows],
            "correct": [sums.correct for _, sums in rows],
            "bytes": [sums.nbytes for _, sums in rows],
        }


Forward = Callable[[nn.Module, Batch, Examples], Any]
"""gives a model's output for a batch of examples"""


def straight(model: nn.Module, batch: Batch, examples: Examples) -> Any:
    """The model's output for the batch."""
    return batch.through(model)


def score(
    model: nn.Module,
    examples: Examples,
    vocab_size: int,
    *,
    batch_size: int = 16,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    limit: int = 0,
    num_targets: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    each: Callable[[Batch, Tensor], None] = lambda batch, logits: None,
    tell: Callable[[int, int], None] = lambda done, count: None,
    forward: Forward = straight,
    carry: bool = False,
    share: Callable[[Sequence[int]], Sequence[int]] = lambda chosen: chosen,
    cut: Callable[[Batch], Batch] = lambda batch: batch,
    merged: Callable[[Scores | None], Scores | None] = lambda scores: scores,
) -> Scores | None:
    """Evaluate a model, in evaluation mode and without gradient; its mode is put back afterwards.

    Args:
        model: called by `Batch.through` -> output with `logits` (batch, length, targets), or (batch, targets) where an
            example has one target.
        examples: a split.
        vocab_size: token ids are below.
        batch_size: examples at a time.
        device: of the model; None: the CPU.
        dtype: bfloat16 uses autocast; logits become float32 before the loss.
        limit: as many examples, evenly spaced; 0: all.
        num_targets: targets are below; None: they are token ids.
        stopped: asked between batches; once it says so, evaluation gives up.
        each: called with every batch and its logits, for what sums do not say.
        tell: called after every batch with the number of examples so far, and of all.
        forward: what gives the output for a batch, where that depends on more than the model reads; not with `carry`.
        carry: read whole documents, window after window, with the memory of a decoder going on.
        share, cut, merged: the examples that this process measures, what it has of a batch of them, and the scores of
            all; by default it is alone.

    Returns:
        The scores, or None if stopped.

    Raises:
        DataError: the split has no target.
        ConfigError: a memory to carry, and a limit, a model without one, or examples that are no windows of documents.
    """
    device = device or torch.device("cpu")
    chosen = share(measured(len(examples), limit))
    batches = (Next(list(chosen[first : first + batch_size]), [], []) for first in range(0, len(chosen), batch_size))
    carried = None
    if carry:
        if forward is not straight:
            raise ConfigError("a memory is carried by the decoder alone: leave the datastore or the memory out")
        carried, batches = reading(model, examples, batch_size, limit)
    scores: Scores | None = Scores()
    done = 0
    with _evaluating(model), torch.no_grad():
        for ids, fresh, rows in batches:
            if stopped():
                scores = None
                break
            batch = cut(collate(examples, ids, vocab_size, num_targets=num_targets)).to(device)
            with autocast(device, dtype):
                if carried is None:
                    output = forward(model, batch, examples)
                else:
                    output = batch.through(model, carried.entering(fresh, rows))
            logits = output.logits
            if carried is not None:
                carried.leaving(output.state)
            nats, correct = measure(logits, batch.targets)
            each(batch, logits)
            tell(done := done + len(batch.documents), len(chosen))
            kept = (batch.targets != IGNORE).sum(1)
            rows = zip(nats.tolist(), kept.tolist(), correct.tolist(), batch.nbytes, strict=True)
            for document, row in zip(batch.documents, rows, strict=True):
                scores.total.add(*row)
                scores.documents.setdefault(document, Sums()).add(*row)
    scores = merged(scores)
    if scores is not None and not scores.total.tokens:
        raise DataError("the split holds no target to predict: it is empty, or shorter than one sequence")
    return scores


def require_finite(scores: Scores, who: str, way_out: str) -> None:
    """Refuse the scores of weights that have diverged.

    Raises:
        NumericsError: the loss is not a finite number.
    """
    if not math.isfinite(scores.total.nats):
        raise NumericsError(
            f"{who}: the loss is {scores.total.nats}: the weights have diverged, so there is nothing to measure; "
            f"{way_out}"
        )


def measured(count: int, limit: int) -> Sequence[int]:
    """The indices of the examples that are measured: `limit` of `count`, evenly spaced; all if `limit` is 0."""
    return range(count) if not 0 < limit < count else [index * count // limit for index in range(limit)]


def measure(
    logits: Float[Tensor, "batch *length vocab"], targets: Int[Tensor, "batch length"]
) -> tuple[Float[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Nats (summed in float64) and right answers (the largest logit) of each row."""
    nats = F.cross_entropy(accumulated(logits).flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none")
    correct = (logits.argmax(-1).view_as(targets) == targets) & (targets != IGNORE)
    return nats.view_as(targets).cpu().double().sum(1), correct.sum(1)


def accumulated(x: Tensor) -> Tensor:
    """Logits or a loss in the dtype that losses are added up in: float32 at least."""
    return x.to(accumulation_dtype(x.dtype))


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast | nullcontext:
    """Products in `dtype` for bfloat16; nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
