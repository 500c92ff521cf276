"""A mistake in the user's module is told with the lines of their files, and is no bug of the library."""

import sys

import pytest

import regard as library
from regard.testing import check_attention

OWN = """
from helper_of_faults import wrong
from regard.core.attention import Attended, Attention
from regard.core.info import Info, Supports


class NoFacts(Attention):
    def attend(self, q, k, v, call):
        return Attended(v)

    def reference(self, q, k, v, call):
        return v


class NoReference(Attention):
    def attend(self, q, k, v, call):
        return Attended(v)


class Fails(NoFacts):
    default_info = Info(title="", source="", supports=Supports(causal=True))

    def attend(self, q, k, v, call):
        return Attended(wrong(q))


class Unbuilt(Fails):
    def setup(self):
        self.table = [0, 1][2]
"""
MODULES = {
    "module_of_faults": OWN,
    "helper_of_faults": "\n\ndef wrong(x):\n    return x.nothing_there\n",
    "module_that_leaves": "import sys\n\nsys.exit(0)\n",
    "module_that_divides": "def half(x):\n    return x / 0\n\n\nhalf(1)\n",
    "module_without_end": "x = 1\n\n\ndef half(x:\n    pass\n",
}


@pytest.fixture
def own(regard, tmp_path):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield regard
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("words", [["check"], ["compare", "--quick"], ["info"]])
def test_a_class_without_its_definition_is_told_what_to_write(own, words):
    answer = own(*words, "module_of_faults:NoReference")
    assert (answer.code, answer.out) == (2, "")
    assert "module_of_faults:NoReference lacks reference, so it cannot be built; write in the class\n" in answer.err
    assert "  def reference(self, q, k, v, call): The definition, explicit and slow" in answer.err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("module_of_faults:NoFacts", "module_of_faults:NoFacts has no class attribute `default_info = Info(...)`\n"),
        (
            "module_of_faults:Unbuilt",
            "IndexError: list index out of range\n  module_of_faults.py, line 29, in setup: self.table = [0, 1][2]\n",
        ),
        (
            "module_that_leaves:Any",
            "SystemExit: 0\n  module_that_leaves.py, line 3, in <module>: sys.exit(0)\n",
        ),
        (
            "module_that_divides:Any",
            "ZeroDivisionError: division by zero\n  module_that_divides.py, line 5, in <module>: half(1)\n"
            "  module_that_divides.py, line 2, in half: return x / 0\n",
        ),
        ("module_without_end:Any", "'(' was never closed\n  module_without_end.py, line 4: def half(x:\n"),
    ],
)
def test_a_class_that_cannot_be_built(own, spec, said):
    answer = own("check", spec)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.endswith(said)


def test_a_class_that_fails_when_it_is_called_in_a_process_of_its_own(own):
    answer = own("bench", "module_of_faults:Fails", "--lengths", "32", "--rounds", "1")
    assert answer.code == 2
    assert answer.err.endswith(
        "AttributeError: 'Tensor' object has no attribute 'nothing_there'\n"
        "  module_of_faults.py, line 24, in attend: return Attended(wrong(q))\n"
        "  helper_of_faults.py, line 4, in wrong: return x.nothing_there\n"
    )


@pytest.mark.parametrize("use", [check_attention, library.register])
def test_python_refuses_a_class_without_facts(use):
    class NoFacts(library.Attention):
        def attend(self, q, k, v, call):
            return library.Attended(v)

        def reference(self, q, k, v, call):
            return v

    with pytest.raises(library.ConfigError, match=r"^NoFacts has no class attribute"):
        use(NoFacts)


def test_a_mistake_of_the_library_is_none_of_a_module_beside_it(own):
    from regard.files import consent

    consent.imported("regard.attention.dense.softmax:Softmax")
    with pytest.raises(AttributeError) as caught:
        library.Heads.kv_heads.fget(None)  # type: ignore[attr-defined]
    assert consent.fault(caught.value) is None


@pytest.mark.parametrize("before", ["space_without_file:Any", "space_without_file.gone:Any", "sys:Any", "gone:Any"])
def test_what_has_no_file_says_nothing_of_code_without_one(own, tmp_path, before):
    """Its folder is none, not the one of <frozen importlib._bootstrap>."""
    (tmp_path / "space_without_file").mkdir()
    assert own("check", before).code == 2
    answer = own("check", "module_that_leaves:Any")
    assert answer.err.endswith("SystemExit: 0\n  module_that_leaves.py, line 3, in <module>: sys.exit(0)\n")
    assert "frozen" not in answer.err
