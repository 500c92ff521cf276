"""What the tests that put a wrong thing into a claim share."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from evidence import claims
from tests import unchanged
from tests.claims.silent import SILENT

Measured = Callable[..., dict[str, Any]]
Verdicts = Callable[..., tuple[str, dict[str, str], list[str]]]


@pytest.fixture(scope="session")
def measured() -> Measured:
    """Measure the small form with other settings, and leave the global generator as it was.

    Tests that look at different findings of the same thing measure it once.
    """

    @cache
    def measure_once(name: str, **settings: object) -> tuple[dict[str, Any], frozenset[str]]:
        before = torch.get_rng_state()
        with unchanged.reading() as files:
            found = claims.measure(claims.build(name, tiny=True, settings=settings), range(3), tiny=True)
            read = frozenset(files)
        assert torch.equal(torch.get_rng_state(), before), "the global generator was left changed"
        return found, read

    def measure(name: str, **settings: object) -> dict[str, Any]:
        found, read = measure_once(name, **settings)
        unchanged.SEEN.update(read)
        return found

    return measure


@pytest.fixture(scope="session")
def verdicts(measured: Measured) -> Verdicts:
    """Verdict of the small form, that of each finding, the controls that were missed.

    Findings that do not hold for the right thing either are left out.
    """

    def judged(name: str, **settings: object) -> tuple[str, dict[str, str], list[str]]:
        found = measured(name, **settings)
        silent = SILENT.get(name, set())
        judged = {one["title"]: one["verdict"] for one in found["findings"] if one["title"] not in silent}
        return found["verdict"], judged, [one["title"] for one in found["controls"] if not one["reached"]]

    return judged
