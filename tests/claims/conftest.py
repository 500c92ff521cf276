"""What the tests that put a wrong thing into a claim share."""

from collections.abc import Callable
from functools import cache

import pytest

from regard import claims
from tests.claims.silent import SILENT

Verdicts = Callable[..., tuple[str, dict[str, str], list[str]]]


@pytest.fixture(scope="session")
def verdicts() -> Verdicts:
    """Measure the small form with other settings: its verdict, that of each finding, the controls that were missed.

    Findings that do not hold for the right thing either are left out.

    Tests that look at different findings of the same wrong thing measure it once.
    """

    @cache
    def measured(name: str, **settings: object) -> tuple[str, dict[str, str], list[str]]:
        found = claims.measure(claims.build(name, tiny=True, settings=settings), range(3), tiny=True)
        silent = SILENT.get(name, set())
        judged = {one["title"]: one["verdict"] for one in found["findings"] if one["title"] not in silent}
        return found["verdict"], judged, [one["title"] for one in found["controls"] if not one["reached"]]

    return measured
