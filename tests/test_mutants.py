"""Every broken mechanism is caught, by the check named for it; the mechanism that it breaks passes that check."""

import importlib
import pkgutil
import re

import pytest

from regard.core import Attention
from regard.testing import CHECKS, check_attention
from tests import mutants

for module in pkgutil.iter_modules(mutants.__path__, f"{mutants.__name__}."):
    importlib.import_module(module.name)
MUTANTS = [mutant for mutant in mutants.MUTANTS if issubclass(mutant.parent, Attention)]


CRASH = re.compile(r"([A-Z]\w*: |$)")
"""how the finding of a check begins that something else than the check has raised: with the name of the error"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_caught_by_its_check(mutant):
    """By what the check compares or by an error that is missing; a crash would say nothing about the check."""
    options = mutant.cls.samples[:1]
    (broken,) = check_attention(mutant.cls, options=options, checks=[mutant.caught_by])
    assert broken.status == "failed", f"{mutant.name} passes {mutant.caught_by}"
    finding = broken.message.removeprefix(f"{CHECKS[mutant.caught_by].law} ")
    assert not CRASH.match(finding), f"{mutant.name} crashes: {finding}"
    (sound,) = check_attention(mutant.parent, options=options, checks=[mutant.caught_by])
    assert sound.status == "passed", sound.message or sound.reason


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
