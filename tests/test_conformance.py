"""Every catalog name keeps every promise, with several option sets.

The budget is 8 seconds of one idle core for each name; on a slow machine that is busy the same work took 41, so the
test only guards against a runaway.
"""

import typing
from pathlib import Path

import pytest

from regard import catalog
from regard.core.errors import ConfigError, UnsupportedError
from regard.testing import CHECKS, check_attention, record
from regard.testing.inputs import Subject

RUNAWAY_SECONDS = 120
TESTED = Path(__file__).parents[1] / "build" / "tested" / "contract"
"""read by docs/pages.py"""


@pytest.mark.parametrize("name", catalog.names())
def test_contract(name):
    results = check_attention(name)
    failed = [f"{r.check} {dict(r.options)}: {r.message}" for r in results if r.status == "failed"]
    assert not failed, "\n\n".join(failed)
    first = [r for r in results if r.options == results[0].options]
    record.keep(TESTED, name, {r.check: r.status for r in first})
    seconds = sum(r.seconds for r in results)
    slowest = sorted(results, key=lambda r: -r.seconds)[:5]
    assert seconds < RUNAWAY_SECONDS, f"{seconds:.1f} s; slowest: {[(r.check, round(r.seconds, 2)) for r in slowest]}"

    cls, _ = catalog.resolve(name)
    for options in cls.samples:
        ran = {r.check: r for r in results if r.options == options}
        assert set(ran) == {c for c, check in CHECKS.items() if options == cls.samples[0] or not check.once}
        for result in ran.values():
            if result.status == "excused":
                assert result.reason.rpartition(": ")[2] in CHECKS


@pytest.mark.parametrize("name", catalog.names())
def test_several_option_sets(name):
    cls, _ = catalog.resolve(name)
    if cls.defaults.keys() - {"impl"}:
        assert len(cls.samples) > 1, f"{name} has options, so `samples` should hold at least two option sets"
    assert all(isinstance(options, dict) for options in cls.samples)


def unsampled(cls):
    """One option set for every value of an option with few values that `samples` leaves out."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for name, default in cls.defaults.items():
        hint = hints[name]
        values = (
            (False, True)
            if hint is bool
            else typing.get_args(hint)
            if typing.get_origin(hint) is typing.Literal
            else ()
        )
        sampled = [options.get(name, default) for options in cls.samples]
        yield from ({**cls.samples[0], name: value} for value in values if value not in sampled)


def buildable(cls, options):
    try:
        subject = Subject(cls, options)
        return bool([subject.fresh(causal) for causal in subject.modes])
    except (ConfigError, UnsupportedError):  # refused by name, or an engine that this machine does not have
        return False


@pytest.mark.parametrize("name", catalog.names())
def test_every_value_of_an_option(name):
    cls, _ = catalog.resolve(name)
    slow = ("cost", "cost_is_reached")  # which look at every option set of `samples`
    quick = [check for check, law in CHECKS.items() if not law.once and check not in slow]
    served = [options for options in unsampled(cls) if buildable(cls, options)]
    results = check_attention(cls, options=served, checks=quick)
    failed = [f"{r.check} {dict(r.options)}: {r.message}" for r in results if r.status == "failed"]
    assert not failed, "\n\n".join(failed)


DOES_NOT_ROUND = {"compilation", "configuration", "cost", "inputs", "misfits", "pattern", "transforms"}
"""modules of checks whose verdict does not depend on the order of a sum"""


@pytest.mark.avx2
@pytest.mark.parametrize("name", catalog.names())
def test_what_rounds(name):
    rounding = [c for c, law in CHECKS.items() if law.run.__module__.rpartition(".")[2] not in DOES_NOT_ROUND]
    failed = [f"{r.check} {dict(r.options)}: {r.message}" for r in check_attention(name, checks=rounding) if r.message]
    assert not failed, "\n\n".join(failed)
