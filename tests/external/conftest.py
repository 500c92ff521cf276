"""With REGARD_REQUIRE_EXTERNAL=1, as `make external` has it, a comparison that is skipped has failed."""

import os
from collections.abc import Iterator

import pytest

REQUIRED = os.environ.get("REGARD_REQUIRE_EXTERNAL") == "1"


def _demanded(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRED and report.skipped:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        report.outcome = "failed"
        report.longrepr = f"{reason}, and REGARD_REQUIRE_EXTERNAL=1 demands it"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _demanded(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _demanded(report)
    return report
