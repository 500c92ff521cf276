"""The loss that is trained on, where it is another than that of the targets."""

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from regard_lab.tasks.base import IGNORE
from regard_lab.training.batches import Batch


def smoothed(logits: Tensor, targets: Tensor, nats: Tensor, share: float) -> Tensor:
    """-sum_v q_v log p_v with q = (1 - e) one-hot + e / vocabulary, summed over the targets.

    Args:
        logits: (targets, vocabulary).
        targets: (targets,), IGNORE where there is none.
        nats: the sum without smoothing, which is returned where there is none.
        share: e.

    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    if not share:
        return nats
    return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=share)


def counts(model: nn.Module, batch: Batch, losses: Iterable[str]) -> dict[str, int]:
    """How many things each of a model's own losses is a mean over, so that parts of a batch weigh what they have.

    Those of exits: targets. Of an encoder that another part reads: tokens of the source; of that part's own layers,
    those that it reads. All others: all tokens, and the one that some encoders put before each sequence.
    """
    config = getattr(getattr(model, "encoder", model), "config", None)
    front = len(batch.inputs) if batch.source is None and getattr(config, "cls_token", False) else 0
    sides = dict(zip(("decoder", "encoder"), batch.sides, strict=False)) if batch.source is not None else {}
    exits = {"depth": batch.tokens} if getattr(model, "reads_targets", False) else {}
    of_kind = sides | exits
    return {name: of_kind.get(name.partition(".")[0], batch.positions + front) for name in losses}
