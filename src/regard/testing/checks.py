"""The suite: every promise of a mechanism is tested, and everything that it does not promise must be refused."""

from collections.abc import Iterable, Mapping, Sequence

from regard.core import Attention, registered_name
from regard.errors import ConfigError, nearest
from regard.testing import (  # noqa: F401 - each module enters its checks into the suite, in this order
    checks_basic,
    checks_bias,
    checks_causal,
    checks_cost,
    checks_gradient,
    checks_marks,
    checks_mask,
    checks_pattern,
    checks_precision,
    checks_state,
    checks_weights,
)
from regard.testing.inputs import Subject
from regard.testing.registry import CHECKS, CheckResult, conduct


def check_attention(
    mechanism: type[Attention] | str,
    *,
    options: Sequence[Mapping[str, object]] | None = None,
    checks: Iterable[str] | None = None,
    stop_at_failure: bool = False,
) -> list[CheckResult]:
    """Run the conformance suite over a mechanism.

    Args:
        mechanism: a class, or a specification such as `local(window=3)` or `module:Class`.
        options: the option sets to check; None: those of the specification, else the mechanism's `samples`.
        checks: names of checks to run; None: all of `CHECKS`.
        stop_at_failure: stop after the first failed check.

    Returns:
        One result per check and option set. A check is excused only by a fact in the mechanism's own `info`, and the
        result names the check that ran in its place.

    Raises:
        ConfigError: an unknown mechanism, option or check.

    Example:
        >>> {result.status for result in check_attention("softmax", checks=["causality", "key_mask"])}
        {'passed'}
    """
    if isinstance(mechanism, str):
        from regard.catalog import resolve

        cls, given = resolve(mechanism)
        options = [given] if options is None and given else options
    else:
        cls = mechanism
    wanted = list(CHECKS) if checks is None else list(checks)
    for name in wanted:
        if name not in CHECKS:
            raise ConfigError(f"unknown check {name!r}: {nearest(name, CHECKS)}")
    results: list[CheckResult] = []
    for at, chosen in enumerate(cls.samples if options is None else options):
        subject = Subject(cls, chosen)
        for name in wanted:
            if CHECKS[name].once and at > 0:
                continue
            results.append(conduct(CHECKS[name], subject, registered_name(cls)))
            if stop_at_failure and results[-1].status == "failed":
                return results
    return results
