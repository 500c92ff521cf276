"""What exits of a decoder lose against all of its blocks, passage by passage, at every threshold of a grid."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64

from regard.core.attention import generator
from regard.core.errors import ConfigError, DataError, UnsupportedError, nearest
from regard.core.types_of import typed
from regard.models import LanguageModel
from regard.models.depth.early_exit import PLANNED, EarlyExit
from regard.models.depth.light_exit import LightExit
from regard.models.generate import evaluation
from regard.text.reader import Encoded
from regard_lab.benchmark.rereading import Rereading
from regard_lab.calibration import items_needed
from regard_lab.calibration.p_values import TestName
from regard_lab.training.exit_heads import require_leavable

LossName = Literal["disagreement", "last", "accuracy"]
LOSSES = {
    "disagreement": "the expected share of a passage's tokens behind which the model with exits says another likeliest "
    "token than the full model, reading the same text,",
    "last": "the chance that behind a whole passage the model with exits says another likeliest token than the full "
    "model",
    "accuracy": "the expected fall, of passages where it falls, of the share of next tokens that the model with exits "
    "guesses right, below that of the full model,",
}
"""loss of a passage -> what its risk is; `last` is 0 or 1"""
THRESHOLDS = (0.998, 0.995, 0.99, 0.98, 0.965, 0.95, 0.93, 0.91, 0.88, 0.84, 0.78, 0.7)
"""for confidences that are probabilities or differences of them"""
COSINES = (0.9999, 0.9995, 0.999, 0.998, 0.995, 0.99, 0.98, 0.96, 0.93, 0.9)
"""for the confidence that is a cosine"""
LOWER = (0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
"""further down, for exits that were trained: they may be right long before they are sure"""


@dataclass(frozen=True)
class Measured:
    """Of passages (items) at thresholds, safest first.

    losses: in [0, 1]. layers: blocks that a token takes, the mean of a passage. right: share of next tokens guessed
    right. nats: mean of a passage. exits: tokens of all passages by the blocks that they took, from 1 on. full_right,
    full_nats: (items,), of all blocks.
    """

    thresholds: tuple[float, ...]
    losses: Float64[np.ndarray, "items thresholds"]
    layers: Float64[np.ndarray, "items thresholds"]
    right: Float64[np.ndarray, "items thresholds"]
    nats: Float64[np.ndarray, "items thresholds"]
    exits: Int64[np.ndarray, "thresholds layers"]
    full_right: Float64[np.ndarray, " items"]
    full_nats: Float64[np.ndarray, " items"]


def passages(documents: Sequence[Encoded], length: int) -> Int64[np.ndarray, "items tokens"]:
    """Every passage of `length` tokens and the one behind it, side by side, none across two documents."""
    found = [
        document.ids[start : start + length + 1]
        for document in documents
        for start in range(0, len(document.ids) - length, length)
    ]
    return np.stack(found) if found else np.zeros((0, length + 1), np.int64)


def drawn(
    found: Int64[np.ndarray, "items tokens"], *counts: int, seed: int, least: int = 1
) -> tuple[Int64[np.ndarray, "items tokens"], ...]:
    """Disjoint parts of so many passages, at random: which ones is a matter of the seed and of their number alone.

    Raises:
        DataError: fewer passages than that; it says how many there are, and of how few (`least`) the last part may be.
    """
    if len(found) < sum(counts):
        raise DataError(
            f"the text has {len(found)} passages of {found.shape[1] - 1} tokens, and {sum(counts)} are asked for; give "
            f"more text, shorter passages (--length) or fewer of them (--passages, {least} at least)"
        )
    order = torch.randperm(len(found), generator=generator(seed, "passages")).numpy()
    ends = np.cumsum(counts)
    return tuple(found[order[end - count : end]] for count, end in zip(counts, ends, strict=True))


def require_items(items: int, *, risk: float, confidence: float, test: TestName) -> int:
    """Refuse too few calibration items before anything is computed.

    Returns:
        How many it takes.

    Raises:
        ConfigError: a risk or confidence out of bounds.
        DataError: fewer items than can certify a threshold; it says how many that takes.
    """
    needed = items_needed(risk=risk, confidence=confidence, test=test)
    if items < needed:
        raise DataError(
            f"{items} calibration passages certify no threshold at risk={risk:g} and confidence={confidence:g}, even "
            f"without any loss: that takes {needed} passages or more"
        )
    return needed


def exits_of(model: LanguageModel) -> EarlyExit | LightExit:
    """What lets tokens of this model leave.

    Raises:
        UnsupportedError: a model without exits, or to which none can be added; one block; exits that ask for no
            threshold.
    """
    depth = model.depth
    if not isinstance(depth, EarlyExit | LightExit):
        require_leavable(model)
        raise UnsupportedError(
            f"a model of depth={model.config.depth!r} has no exits, so there is no threshold to find; train one with "
            "--model.depth early_exit, or give it exits with --heads own or --heads light"
        )
    if model.config.layers < 2:
        raise UnsupportedError("a model of one block has no exit before its last one, so there is no threshold to find")
    if isinstance(depth, EarlyExit) and depth.confidence in PLANNED:
        raise UnsupportedError(
            f"the exits of confidence={depth.confidence!r} are planned and ask for no threshold, so there is none to "
            "find; train with confidence=softmax, saturation, classifier or geometric"
        )
    if isinstance(depth, EarlyExit) and depth.thresholds:
        raise UnsupportedError("every block of this model has a threshold of its own; leave thresholds out to find one")
    return depth


@contextmanager
def leaving_at(model: LanguageModel, threshold: float) -> Iterator[None]:
    """The threshold of the model's exits inside, its own afterwards."""
    depth = exits_of(model)
    before = depth.threshold
    depth.threshold = threshold
    try:
        yield
    finally:
        depth.threshold = before


@typed
@torch.no_grad()
def measure(
    model: LanguageModel,
    items: Int64[np.ndarray, "items tokens"],
    thresholds: Sequence[float],
    *,
    loss: LossName = "disagreement",
    batch_size: int = 16,
    tell: Callable[[str], None] = lambda line: None,
) -> Measured:
    """Losses of every passage at every threshold, as the model with exits reads it: skipped blocks have keys of copied
    states, as when it generates.

    Cost: of every passage a call of the full model with the confidences behind all of its blocks; and for each
    threshold what changes against the one before, see `Rereading`.

    Args:
        model: with exits; its threshold is put back.
        items: passages, as `passages` gives them.
        thresholds: from the safest on.
        loss: of a passage, see `LOSSES`.
        batch_size: passages at a time.
        tell: called with lines about the progress.

    Raises:
        UnsupportedError: a model without exits.
        ConfigError: an unknown loss.
        ConfigError: thresholds that do not fall.
        DataError: passages longer than the model's positions, or none.
    """
    exits_of(model)
    if loss not in get_args(LossName):
        raise ConfigError(f"loss: no choice {loss!r}: {nearest(loss, LOSSES)}")
    if any(not one > other for one, other in pairwise(thresholds)):
        raise ConfigError(f"thresholds must fall from the safest on, got {list(thresholds)}")
    count, length = len(items), items.shape[1] - 1
    if not count or length < 1:
        raise DataError(f"there are {count} passages of {length} tokens, and nothing to measure")
    if model.limit is not None and length > model.limit:
        raise DataError(f"passages of {length} tokens are longer than the model's {model.limit} positions")
    blocks, shape = model.config.layers, (count, len(thresholds))
    losses, layers, right, nats = (np.zeros(shape) for _ in range(4))
    exits = np.zeros((len(thresholds), blocks), np.int64)
    full_right, full_nats = np.zeros(count), np.zeros(count)
    computed = 0
    tell(f"measuring {count} passages at {len(thresholds)} thresholds, {batch_size} at a time")
    with evaluation(model):
        for start in range(0, count, batch_size):
            part = slice(start, start + batch_size)
            with leaving_at(model, 1.0):
                reading = Rereading(model, torch.from_numpy(items[part]).to(model.table.weight.device))
            full = replace(reading.answers, likeliest=reading.answers.likeliest.clone())
            full_right[part], full_nats[part] = full.right.mean(1).cpu(), full.nats.mean(1).cpu()
            for at, threshold in enumerate(thresholds):
                with leaving_at(model, threshold):
                    now = reading.at_threshold()
                differs = (now.likeliest != full.likeliest).double()
                right[part, at], nats[part, at] = now.right.mean(1).cpu(), now.nats.mean(1).cpu()
                fall = np.clip(full_right[part] - right[part, at], 0, 1)
                found = {"disagreement": differs.mean(1).cpu(), "last": differs[:, -1].cpu(), "accuracy": fall}
                losses[part, at] = found[loss]
                layers[part, at] = now.steps.double().mean(1).cpu()
                exits[at] += torch.bincount(now.steps.flatten(), minlength=blocks + 1)[1:].cpu().numpy()
            computed += reading.computed
            share = computed / (min(part.stop, count) * max(len(thresholds), 1) * blocks)
            tell(f"read {min(part.stop, count)} of {count} passages; {share:.0%} of blocks again at each threshold")
    for at, threshold in enumerate(thresholds):
        tell(
            f"threshold {threshold:g}: mean loss {losses[:, at].mean():.4f}, "
            f"{layers[:, at].mean():.2f} of {blocks} blocks"
        )
    return Measured(tuple(thresholds), losses, layers, right, nats, exits, full_right, full_nats)
