"""Functions of the standard library, and versions that differ by one line."""

import ast

import pytest

from regard.core.errors import ConfigError
from regard_lab.tasks.functions import functions, versions


def test_functions_are_real_and_stand_alone():
    found = functions()
    assert len(found) > 300
    assert list(found) == sorted(set(found))
    for text in found:
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef)
        assert text.startswith("def ")
        assert 5 <= len(text.splitlines()) <= 15


@pytest.mark.parametrize(("change", "lines"), [("body", range(1, 15)), ("signature", range(1))])
def test_versions_differ_by_one_line_from_the_real_one(change, lines):
    found = versions(5, 4, change=change, seed=2)
    assert [one.family for one in found] == [family for family in range(5) for _ in range(4)]
    known = set(functions())
    for at in range(0, 20, 4):
        real = found[at].text
        assert real in known
        assert len({one.text for one in found[at : at + 4]}) == 4
        for other in found[at + 1 : at + 4]:
            pairs = zip(real.splitlines(), other.text.splitlines(), strict=True)
            (place,) = [row for row, (a, b) in enumerate(pairs) if a != b]
            assert place in lines
            assert other.signature == other.text.splitlines()[0]


def test_no_question_has_two_answers():
    assert len({one.signature for one in versions(60, 4, change="signature")}) == 240
    assert len({one.text for one in versions(60, 4)}) == 240


def test_versions_repeat_and_depend_on_their_seed():
    assert versions(3, 2, seed=1) == versions(3, 2, seed=1) != versions(3, 2, seed=2)


def test_what_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="in their body or their signature, got 'name'"):
        versions(1, 2, change="name")
    with pytest.raises(ConfigError, match="functions whose body is told apart, asked for 999"):
        versions(999, 1)
    with pytest.raises(ConfigError, match="must be at least 1, got 0 and 2"):
        versions(0, 2)
