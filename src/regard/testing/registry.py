"""Checks, the facts that excuse one, and the results that they report."""

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from regard.core.attention import Attention, registered_name
from regard.core.info import Info
from regard.files import consent
from regard.testing.inputs import Subject


@dataclass(frozen=True)
class Excuse:
    """A fact that makes a check meaningless, and the check that runs in its place.

    Attributes:
        fact: a field of `Info`, such as `leaks` or `not supports.state`; for a part of a model an attribute of the
            class, such as `absolute`.
        substitute: the check that tests what the fact claims.
    """

    fact: str
    substitute: str

    def holds(self, facts: Info | type) -> bool:
        """Whether the fact is true of a mechanism with these facts, or of a part."""
        path = self.fact.removeprefix("not ")
        return bool(operator.attrgetter(path)(facts)) is (path == self.fact)


@dataclass(frozen=True)
class Check:
    """One law of a kind of class: `run` raises unless it holds."""

    name: str
    law: str
    run: Callable[[Any], None]
    """of a mechanism it is given a `Subject`, of a part of a model the class"""
    kind: type = Attention
    """`Attention` or a template of mechanisms, or the class of a part of a model"""
    excuses: tuple[Excuse, ...] = ()
    once: bool = False
    """only the first option set is checked, because the check is slow and options rarely matter to it"""
    elsewhere: str = ""
    """the check that runs in its place on mechanisms of other templates than `kind`"""

    def excuse(self, subject: Subject | type) -> str:
        """The fact that excuses a mechanism or a part, and the check in place of this one; empty: none does."""
        mechanism = isinstance(subject, Subject)
        if mechanism and not issubclass(subject.cls, self.kind):
            return f"no {self.kind.__name__}; checked instead: {self.elsewhere}"
        for excuse in self.excuses:
            if excuse.holds(subject.info if mechanism else subject):
                return f"{'info' if mechanism else 'class'}: {excuse.fact}; checked instead: {excuse.substitute}"
        return ""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of one check on one option set."""

    check: str
    mechanism: str
    """or the part"""
    options: Mapping[str, object]
    status: Literal["passed", "failed", "excused"]
    reason: str = ""
    """excused: the fact that excuses it and the check that ran in its place"""
    message: str = ""
    """failed: what was found"""
    seconds: float = 0.0
    """of one core"""


REGISTERED: dict[str, Check] = {}
"""Every check of every kind by name, in the order in which they run."""


def check(
    *excuses: tuple[str, str],
    kind: type = Attention,
    once: bool = False,
    elsewhere: str = "",
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a function into the suite under its own name; its first docstring line is the law.

    Args:
        excuses: (fact, substitute) pairs, see `Excuse`.
        kind: see `Check.kind`.
        once: see `Check.once`.
        elsewhere: see `Check.elsewhere`.
    """

    def enter(run: Callable[[Any], None]) -> Callable[[Any], None]:
        name, law = run.__name__, (run.__doc__ or "").strip().splitlines()[0]
        assert name not in REGISTERED
        pairs = tuple(Excuse(*pair) for pair in excuses)
        REGISTERED[name] = Check(name, law, run, kind, pairs, once, elsewhere)
        return run

    return enter


def conduct(each: Check, subject: Subject | type) -> CheckResult:
    """Run one check on a mechanism with an option set or on a part of a model, or excuse it."""
    cls, options = (subject.cls, subject.options) if isinstance(subject, Subject) else (subject, {})
    facts = {"check": each.name, "mechanism": registered_name(cls), "options": options}
    if reason := each.excuse(subject):
        return CheckResult(**facts, status="excused", reason=reason)
    started = time.process_time()
    try:
        each.run(subject)
    except Exception as error:  # whatever a broken class raises is the finding
        crash = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        where = consent.lines(error)[-1:] if crash else []
        message = "\n".join([f"{each.law} {crash}{error}", *where])
        return CheckResult(**facts, status="failed", message=message, seconds=time.process_time() - started)
    return CheckResult(**facts, status="passed", seconds=time.process_time() - started)
