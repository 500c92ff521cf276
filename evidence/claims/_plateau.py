"""Whether a training was over when it ended: what is not says nothing about who would have won.

That a loss stands still at its end says something only while the learning rate is still large: towards a rate of 0
every loss stands still, however little was learned.
"""

from collections.abc import Sequence

from evidence.claims._base import Control

SETTLED = 0.05
"""largest change of the loss over the last tenth of a training that is over"""
NATS = 0.05
"""a loss below it, in nats, is as good as none: its changes are compared with this"""

FINISHED = Control(
    "unfinished", "trainings: change of the loss over the last tenth, most", 0.0, tolerance=SETTLED, small=False
)


def change(losses: Sequence[float], *, least: float = NATS) -> float:
    """The change from the last tenth but one to the last, as a share of the former.

    Args:
        losses: of all steps, or their means over equal numbers of steps; at least 20.
        least: what a smaller loss counts as.

    Example:
        >>> round(change([4.0] * 160 + [2.0] * 20 + [1.0] * 20), 9)
        0.5
        >>> change([4.0] * 160 + [0.01] * 20 + [0.0] * 20) < 0.21
        True
    """
    tenth = len(losses) // 10
    if tenth < 2:
        return float("inf")
    before, last = sum(losses[-2 * tenth : -tenth]) / tenth, sum(losses[-tenth:]) / tenth
    return abs(last - before) / max(before, least)
