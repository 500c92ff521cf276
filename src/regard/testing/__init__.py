"""The contract as a public suite: what every mechanism must do, checked; and broken mechanisms that it must catch."""

from regard.testing.checks import check_attention
from regard.testing.compare import assert_close, assert_identical
from regard.testing.parts import check_part
from regard.testing.registry import CHECKS, Check, CheckResult, Excuse

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
    "check_part",
]
