"""The loss that is trained on, where it is another than that of the targets."""

import torch.nn.functional as F
from torch import Tensor

from regard.tasks.base import IGNORE


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
