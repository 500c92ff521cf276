"""The contract as a public suite: what every mechanism must do, checked."""

from regard.testing.checks import CHECKS, check_attention
from regard.testing.compare import assert_close, assert_identical
from regard.testing.registry import Check, CheckResult, Excuse

check = check_attention

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "Excuse",
    "assert_close",
    "assert_identical",
    "check",
    "check_attention",
]
