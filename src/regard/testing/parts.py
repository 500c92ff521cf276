"""Laws of what is no mechanism: position schemes, layers, blocks, the targets of language models.

Each law is a check for one kind of class. `check_part` runs those of the kinds that a class belongs to, on the class
itself: a scheme of the catalog, or one of your own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from regard.core import registered_name
from regard.errors import ConfigError, nearest
from regard.testing.registry import CheckResult


@dataclass(frozen=True)
class PartCheck:
    """One law: `run` raises unless it holds for a class of `kind`."""

    name: str
    law: str
    kind: type
    run: Callable[[Any], None]


PART_CHECKS: dict[str, PartCheck] = {}
"""Every check of parts by name."""


def part_check(kind: type) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a function into the suite under its own name; its first docstring line is the law."""

    def enter(run: Callable[[Any], None]) -> Callable[[Any], None]:
        name, law = run.__name__, (run.__doc__ or "").strip().splitlines()[0]
        assert name not in PART_CHECKS
        PART_CHECKS[name] = PartCheck(name, law, kind, run)
        return run

    return enter


def check_part(part: type, *, checks: Iterable[str] | None = None) -> list[CheckResult]:
    """Run the laws of its kind over a part of a model.

    Args:
        part: a subclass of `Position`, `AttentionLayer`, `Block`, `CrossBlock`, `EncoderDecoder` or `Windows` (the
            data of `TextTask`).
        checks: names of checks to run; None: all of its kind.

    Returns:
        One result per check.

    Raises:
        ConfigError: an unknown check, or a class that no check is for.

    Example:
        >>> from regard.position.alibi import Alibi
        >>> [(result.check, result.status) for result in check_part(Alibi)]
        [('published_logits', 'passed'), ('columns_are_distances', 'passed')]
    """
    from regard.testing import checks_models, checks_positions  # each enters its checks

    del checks_models, checks_positions
    wanted = list(PART_CHECKS) if checks is None else list(checks)
    for name in wanted:
        if name not in PART_CHECKS:
            raise ConfigError(f"unknown check {name!r}: {nearest(name, PART_CHECKS)}")
    found = [PART_CHECKS[name] for name in wanted if issubclass(part, PART_CHECKS[name].kind)]
    if not found:
        kinds = sorted({each.kind.__name__ for each in PART_CHECKS.values()})
        raise ConfigError(f"{part.__name__} is none of {', '.join(kinds)}, or {wanted} is not for it")
    return [_conduct(each, part) for each in found]


def _conduct(each: PartCheck, part: type) -> CheckResult:
    facts = {"check": each.name, "mechanism": registered_name(part), "options": {}}
    started = time.process_time()
    try:
        each.run(part)
    except Exception as error:  # whatever a broken part raises is the finding
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        message = f"{each.law} {kind}{error}"
        return CheckResult(**facts, status="failed", message=message, seconds=time.process_time() - started)
    return CheckResult(**facts, status="passed", seconds=time.process_time() - started)
