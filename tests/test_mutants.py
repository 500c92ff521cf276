"""Every broken mechanism is caught, by the check named for it; the mechanism that it breaks passes that check."""

import importlib
import pkgutil
from dataclasses import replace

import pytest

from regard.core.attention import Attention
from regard.testing import CHECKS
from tests import mutants
from tests.laws import PART_CHECKS
from tests.mutants import toys
from tests.mutants.verdict import objection

for module in pkgutil.iter_modules(mutants.__path__, f"{mutants.__name__}."):
    importlib.import_module(module.name)
MUTANTS = [mutant for mutant in mutants.MUTANTS if issubclass(mutant.parent, Attention)]


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_caught_by_its_check(mutant):
    assert objection(mutant) == ""


def test_every_check_has_a_mutant():
    assert {mutant.caught_by for mutant in MUTANTS} == set(CHECKS)


def test_every_mutant_is_run():
    """Here, or beside the parts of models."""
    assert all(mutant in MUTANTS or mutant.caught_by in PART_CHECKS for mutant in mutants.MUTANTS)


def test_every_substitute_can_fail():
    substitutes = {excuse.substitute for check in CHECKS.values() for excuse in check.excuses}
    assert substitutes <= {mutant.caught_by for mutant in MUTANTS}


def test_enough_and_told_apart():
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.cls.__doc__ for mutant in MUTANTS)


def test_only_facts_or_code_differ():
    for mutant in MUTANTS:
        own = set(vars(mutant.cls)) - {"__module__", "__doc__", "__abstractmethods__", "_abc_impl", "__firstlineno__"}
        assert own, f"{mutant.name} changes nothing"


class Sound(toys.ToyDense):
    """Breaks nothing."""


class Crashes(toys.ToyDense):
    """Raises an error of its own."""

    def attend(self, q, k, v, call):
        raise KeyError("no such thing")


class Asserts(toys.ToyDense):
    """Fails an assertion of its own, with a message."""

    def attend(self, q, k, v, call):
        raise AssertionError("values: error 1")


class RefusesByChance(toys.ToyDense):
    """Fails where it should refuse, with another error than was promised."""

    def forward(self, q, k, v, **given):
        if given["key_mask"] is not None and given["key_mask"].shape[1] != k.shape[2]:
            raise RuntimeError("shapes cannot be multiplied")
        return super().forward(q, k, v, **given)


class Unstable(toys.ToyBuckets):
    """Leaves a check without inputs to compare on."""

    def reference(self, q, k, v, call, decisions=None):
        return super().reference(q, k, v, call) * (1e9 * q.sum()).sin()


class NoState(toys.ToyWindow):
    """Supports no state, so that nothing of it is checked."""

    default_info = mutants.claiming(toys.ToyWindow.default_info, {"state": False})


class Wrong(toys.ToyWindow):
    """Keeps nothing of what came before."""

    def attend(self, q, k, v, call):
        return super().attend(q, k, v, call._replace(state=None))._replace(state=call.state)


@pytest.mark.parametrize(
    ("cls", "caught_by", "why"),
    [
        (Sound, "reference", "Sound passes reference"),
        (Crashes, "reference", "Crashes crashes: KeyError: 'no such thing'"),
        (Asserts, "reference", "Asserts crashes: AssertionError: values: error 1"),
        (RefusesByChance, "misfits", "RefusesByChance crashes: Failure: "),
        (Unstable, "reference_float32", "Unstable crashes: AssertionError: 20 seeds"),
        (NoState, "state_splits", "NoState is excused: info: not supports.state"),
    ],
)
def test_what_says_nothing_about_a_check_is_no_mutant(cls, caught_by, why):
    assert objection(mutants.Mutant(cls, cls.__bases__[0], caught_by)).startswith(why)


def test_a_parent_that_is_excused_or_fails_is_none():
    broken = next(mutant for mutant in MUTANTS if mutant.name == "WindowOffByPast")
    for parent, why in ((NoState, "the parent is excused: info: not supports.state"), (Wrong, "the parent is failed")):
        assert objection(replace(broken, parent=parent)).startswith(why)


def test_a_parent_has_the_options_of_its_mutant():
    windows = []

    class Parent(toys.ToyWindow):
        def check_options(self):
            windows.append(self.window)

    class Broken(Parent):
        samples = ({"window": 5},)

        def score(self, q, k):
            return -super().score(q, k)

    assert objection(mutants.Mutant(Broken, Parent, "reference")) == ""
    assert set(windows) == {5}
