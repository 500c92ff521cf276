"""What a check is, how a fact excuses one, and what it reports."""

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from regard.info import Info
from regard.testing.inputs import Subject


class Failure(AssertionError):
    """A check that does not hold."""


def require(condition: bool, message: str) -> None:
    """Fail the check unless `condition`; unlike `assert` it survives `python -O`."""
    if not condition:
        raise Failure(message)


@dataclass(frozen=True)
class Excuse:
    """A fact that makes a check meaningless, and the check that runs in its place.

    Attributes:
        fact: a field of `Info`, such as `leaks` or `not supports.state`.
        substitute: the check that tests what the fact claims.
    """

    fact: str
    substitute: str

    def holds(self, info: Info) -> bool:
        """Whether the fact is true of a mechanism."""
        path = self.fact.removeprefix("not ")
        return bool(operator.attrgetter(path)(info)) is (path == self.fact)


@dataclass(frozen=True)
class Check:
    """One law: `run` raises unless it holds."""

    name: str
    law: str
    run: Callable[[Subject], None]
    excuses: tuple[Excuse, ...] = ()
    once: bool = False
    """only the first option set is checked, because the check is slow and options rarely matter to it"""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What became of one check on one option set."""

    check: str
    mechanism: str
    options: Mapping[str, object]
    status: Literal["passed", "failed", "excused"]
    reason: str = ""
    """excused: the fact that excuses it and the check that ran in its place"""
    message: str = ""
    """failed: what was found"""
    seconds: float = 0.0
    """of one core"""


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run."""


def check(
    *excuses: tuple[str, str], once: bool = False
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Enter a function into the suite under its own name; its first docstring line is the law.

    Args:
        excuses: (fact, substitute) pairs, see `Excuse`.
        once: see `Check.once`.
    """

    def enter(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name, law = run.__name__, (run.__doc__ or "").strip().splitlines()[0]
        assert name not in CHECKS
        CHECKS[name] = Check(name, law, run, tuple(Excuse(*pair) for pair in excuses), once)
        return run

    return enter


def conduct(each: Check, subject: Subject, name: str) -> CheckResult:
    """Run one check, or excuse it."""
    facts = {"check": each.name, "mechanism": name, "options": subject.options}
    for excuse in each.excuses:
        if excuse.holds(subject.info):
            return CheckResult(
                **facts, status="excused", reason=f"info: {excuse.fact}; checked instead: {excuse.substitute}"
            )
    started = time.process_time()
    try:
        each.run(subject)
    except Exception as error:  # whatever a broken mechanism raises is the finding
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        message = f"{each.law} {kind}{error}"
        return CheckResult(**facts, status="failed", message=message, seconds=time.process_time() - started)
    return CheckResult(**facts, status="passed", seconds=time.process_time() - started)
