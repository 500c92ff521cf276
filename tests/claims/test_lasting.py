"""Whether a pair was trained long enough: what twice the steps tell, and the last tenth of a training does not."""

import pytest
import torch

from evidence.claims._base import Finding
from evidence.claims._plateau import change_with_steps, lasting
from evidence.claims._units import OVER, Course, finished
from evidence.claims._verdict import conclude

EFFECT = 0.05


def course(start: float, steps: int) -> Course:
    """Of one number that is to become 3, from where it starts."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(start)

    def loss() -> torch.Tensor:
        return (model.weight - 3).square().sum()

    return finished(model, loss, lambda: float(loss()), steps=steps, learning_rate=0.02)


def difference(steps: int) -> float:
    """One that starts far from its end, against one that starts near."""
    return course(0.0, steps).bits - course(1.0, steps).bits


def test_a_pair_that_is_not_trained_out_fails_though_its_losses_stand_still():
    short, long = 40, 500
    finding = Finding(value="bits", title="far - near", at_least=1.0)
    verdicts = []
    for steps in (short, long):
        values = {
            "bits": difference(steps),
            "unfinished": max(course(start, steps).change for start in (0.0, 1.0)),
            "lasting": change_with_steps(difference, steps),  # the same for all seeds, whose interval is a point
        }
        assert values["unfinished"] <= OVER.tolerance, "the rate is 0 there, and nothing moves"
        judged = [conclude(controls, [finding], [values] * 3) for controls in ([OVER], [OVER, lasting(EFFECT)])]
        verdicts.append([one.verdict for one in judged])
    assert verdicts == [["holds", "inconclusive"], ["does not hold", "does not hold"]]


@pytest.mark.parametrize(("effect", "reached"), [(0.051, True), (0.049, False)])
def test_the_difference_may_change_by_less_than_the_effect(effect, reached):
    value = change_with_steps(lambda steps: 10 / steps, 100)
    finding = Finding(value="d", title="", at_most=1.0)
    (control,) = conclude([lasting(effect)], [finding], [{"lasting": value, "d": 0.0}] * 3).controls
    assert control.reached == reached
    (alone,) = conclude([lasting(effect)], [finding], [{"lasting": value, "d": 0.0}]).controls
    assert not alone.reached, "one seed says nothing of a mean"


def test_what_moves_every_seed_is_told_from_what_moves_each_of_them():
    """The largest change of many noisy ones passes any limit; the mean of what only is noise does not."""
    finding = Finding(value="d", title="", at_most=1.0)

    def reached(changes: list[float]) -> bool:
        return conclude([lasting(EFFECT)], [finding], [{"lasting": x, "d": 0.0} for x in changes]).controls[0].reached

    noise = [0.06, -0.05, 0.04, -0.06, 0.05, -0.04, 0.02, -0.02]
    assert reached(noise)
    assert not reached(noise[:2]), "too few to say it"
    assert not reached([x + 0.05 for x in noise]), "all of them moved"
