"""Every broken mechanism is caught, by the check named for it; the mechanism that it breaks passes that check."""

import importlib
import pkgutil

import pytest

from regard.core import Attention
from regard.testing import CHECKS, check_attention
from tests import mutants

for module in pkgutil.iter_modules(mutants.__path__, f"{mutants.__name__}."):
    importlib.import_module(module.name)
MUTANTS = [mutant for mutant in mutants.MUTANTS if issubclass(mutant.parent, Attention)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_caught_by_its_check(mutant):
    (broken,) = check_attention(mutant.cls, options=mutant.cls.samples[:1], checks=[mutant.caught_by])
    assert broken.status == "failed", f"{mutant.name} passes {mutant.caught_by}"
    (sound,) = check_attention(mutant.parent, options=mutant.parent.samples[:1], checks=[mutant.caught_by])
    assert sound.status != "failed", sound.message


def test_every_check_has_a_mutant():
    assert {mutant.caught_by for mutant in MUTANTS} == set(CHECKS)


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
