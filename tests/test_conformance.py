"""Every catalog name keeps every promise, with several option sets, in at most 8 seconds of one core."""

import inspect

import pytest

from regard import catalog
from regard.core import Attention
from regard.testing import CHECKS, check_attention

SECONDS = 8


@pytest.mark.parametrize("name", catalog.names())
def test_contract(name):
    results = check_attention(name)
    failed = [f"{r.check} {dict(r.options)}: {r.message}" for r in results if r.status == "failed"]
    assert not failed, "\n\n".join(failed)
    seconds = sum(r.seconds for r in results)
    slowest = sorted(results, key=lambda r: -r.seconds)[:5]
    assert seconds < SECONDS, f"{seconds:.1f} s; slowest: {[(r.check, round(r.seconds, 2)) for r in slowest]}"

    cls, _ = catalog.resolve(name)
    for options in cls.samples:
        ran = {r.check: r for r in results if r.options == options}
        first = options == cls.samples[0]
        assert set(ran) == {c for c, check in CHECKS.items() if first or not check.once}
        for result in ran.values():
            if result.status == "excused":
                assert result.reason.rpartition(": ")[2] in CHECKS


@pytest.mark.parametrize("name", catalog.names())
def test_several_option_sets(name):
    cls, _ = catalog.resolve(name)
    if cls.__init__ is not Attention.__init__ and len(inspect.signature(cls.__init__).parameters) > 2:
        assert len(cls.samples) > 1, f"{name} has options, so `samples` should hold at least two option sets"
    assert all(isinstance(options, dict) for options in cls.samples)
