"""Whether a mutant says something about its check."""

from pathlib import Path

import pytest
from torch._dynamo.exc import TorchDynamoException

import regard.testing
from regard.core.attention import Attention
from regard.testing.inputs import Subject
from regard.testing.registry import REGISTERED, conduct
from tests.mutants import Mutant

CHECKING = Path(regard.testing.__file__).parent
"""where what a check compares or misses is said"""
NO_COMPARISON = {CHECKING / "inputs.py", CHECKING / "conditioning.py"}
"""where it is said that nothing can be compared on some inputs"""
_SOUND: dict[tuple[str, type, str], str] = {}
"""what is to be objected to a parent under a check and options"""


def objection(mutant: Mutant) -> str:
    """Why a mutant says nothing about its check; empty: the check catches it, and passes on what it breaks.

    It must be caught by what the check compares or by an error that is missing: a crash would say nothing. Mechanisms
    are checked with the mutant's own options.
    """
    check = REGISTERED[mutant.caught_by]
    broken, sound = (
        Subject(cls, mutant.cls.samples[0]) if issubclass(cls, Attention) else cls
        for cls in (mutant.cls, mutant.parent)
    )
    if excuse := check.excuse(broken):
        return f"{mutant.name} is excused: {excuse}"
    try:
        check.run(broken)
    except Exception as error:  # whatever it raises must be the check's own finding
        if not found(error):
            return f"{mutant.name} crashes: {type(error).__name__}: {error}"
    else:
        return f"{mutant.name} passes {check.name}"
    key = check.name, mutant.parent, repr(mutant.cls.samples[0] if issubclass(mutant.cls, Attention) else "")
    if key not in _SOUND:  # mutants share parents
        result = conduct(check, sound)
        passed = result.status == "passed"
        _SOUND[key] = "" if passed else f"the parent is {result.status}: {result.message or result.reason}"
    return _SOUND[key]


def found(error: BaseException) -> bool:
    """True if a check has said this, and not the code under it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    assert at is not None
    file = Path(at.tb_frame.f_code.co_filename)
    of_compiler = isinstance(error.__cause__, TorchDynamoException)  # a graph that breaks is what a check looks for
    said = isinstance(error, AssertionError) and (error.__cause__ is None or of_compiler) and bool(str(error))
    ours = file.is_relative_to(CHECKING) and file not in NO_COMPARISON
    return (ours and said) or isinstance(error, pytest.fail.Exception)
