"""Whether a training was over when it ended: what is not says nothing about who would have won.

That a loss stands still at its end says something only while the learning rate is still large: towards a rate of 0
every loss stands still, however little was learned. What a longer training would change, a longer training tells.
"""

from collections.abc import Callable, Sequence

from evidence.claims._base import Control

SETTLED = 0.05
"""largest change of the loss over the last tenth of a training that is over"""
NATS = 0.05
"""a loss below it, in nats, is as good as none: its changes are compared with this"""

FINISHED = Control(
    "unfinished", "trainings: change of the loss over the last tenth, most", 0.0, tolerance=SETTLED, small=False
)


def lasting(effect: float, of: str = "") -> Control:
    """A control for claims that compare trainings: twice the steps leave their difference where it is.

    It asks the mean over seeds, as findings do: a training anew moves each seed by its noise, and only what moves all
    of them says that the trainings were too short.

    Args:
        effect: what the claim is to see, in the units of the difference, such as the distance between a bound and what
            is expected; the mean of the difference must change by less.
        of: which difference, where a claim has several; a part of the value's name.
    """
    return Control(
        f"lasting {of}".strip(),
        f"trainings: change of their difference{of and f' ({of})'} with twice the steps, mean",
        0.0,
        tolerance=effect,
        small=False,
        mean=True,
    )


def change_with_steps(difference: Callable[[int], float], steps: int) -> float:
    """d(2 steps) - d(steps), the value of `lasting`.

    Args:
        difference: of a pair that is trained anew for so many steps, each training with a schedule of its own length.
        steps: of the trainings that are compared.

    Example:
        >>> round(change_with_steps(lambda steps: 3.0 + 10 / steps, 100), 9)
        -0.05
    """
    return difference(2 * steps) - difference(steps)


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
