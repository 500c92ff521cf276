"""Comparisons with published packages: where the packages must be there, none of them is skipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULE = 'import pytest\npytest.importorskip("no_such_package")\n\ndef test_it():\n    pass\n'
FUNCTION = 'import pytest\n\ndef test_it():\n    pytest.skip("no such package")\n\ndef test_other():\n    pass\n'


@pytest.mark.parametrize(("required", "outcome"), [("0", "1 passed, 2 skipped"), ("1", "1 failed, 1 passed, 1 error")])
def test_what_is_missing_fails_where_it_is_required(tmp_path, required, outcome):
    shutil.copy(ROOT / "tests" / "external" / "conftest.py", tmp_path)
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "test_function.py").write_text(FUNCTION)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."]
    environment = {**os.environ, "REGARD_REQUIRE_EXTERNAL": required}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome in done.stdout, done.stdout
    assert bool(done.returncode) is (required == "1")
    assert ("and REGARD_REQUIRE_EXTERNAL=1 demands it" in done.stdout) is (required == "1")


def test_make_external_requires_them():
    recipes = (ROOT / "Makefile").read_text().replace("\\\n", "").splitlines()
    (recipe,) = (line for line in recipes if "-m external" in line)
    assert "REGARD_REQUIRE_EXTERNAL=1" in recipe
    assert "stage external" in (ROOT / ".ci" / "run").read_text().splitlines()
