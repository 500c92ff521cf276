"""Every one-line fault of an engine or of dispatch is caught by the check named for it."""

from dataclasses import replace

import pytest

from tests.mutants.edited_backward import BACKWARD
from tests.mutants.edited_engines import ENGINES
from tests.mutants.edited_models import MODELS

EDITS = BACKWARD + ENGINES + MODELS


@pytest.mark.mutants
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_caught(edit):
    assert edit.objection() == ""


def test_told_apart():
    assert len({edit.name for edit in EDITS}) == len(EDITS)


def test_what_says_nothing_about_a_check_is_none():
    """A change that nothing notices, that crashes, or that is caught where all is not well without it."""
    (sound,) = (edit for edit in BACKWARD if edit.name == "lists forget the mean slope")
    function = sound.function()
    exact = function.__code__
    assert replace(sound, after=sound.before).objection() == "passes reference_gradients"
    assert replace(sound, after="no_such_name").objection().startswith("crashes: NameError")
    assert (
        replace(sound, subject="tests.mutants.gradient:DetachedNormaliser")
        .objection()
        .startswith("fails without the change")
    )
    assert function.__code__ is exact
    with pytest.raises(AssertionError, match="has 0 such texts"):
        replace(sound, before="no such text").objection()
