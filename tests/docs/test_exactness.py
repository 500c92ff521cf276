"""What the page on approximations shows of the whole catalog."""

import re
from pathlib import Path

import exactness
import pytest

from regard import catalog
from regard_lab.benchmark.capacity import decoded, recall

PAGE = Path(exactness.__file__).with_name("accuracy.md")


def test_every_mechanism_is_measured_or_told_why_not():
    """Run `python docs/exactness.py` again where this fails."""
    found = exactness.recorded()
    assert set(found["error"]) == set(exactness.comparable())
    named = {spec for spec in found["held"] if "(" not in spec}
    absent = {name for name in catalog.names() if exactness.unasked(name)}
    assert named | absent | {"performer"} == set(catalog.names())
    assert not named & absent
    shown = "\n".join([*exactness.error_lines(), *exactness.held_lines()])
    assert all(shown.count(f"`{name}`") + shown.count(f"`{name}(") >= 2 for name in catalog.names())


def test_a_table_is_sorted_and_has_a_row_for_each():
    found = exactness.recorded()
    rows = [line for line in exactness.error_lines() if line.startswith("| `")]
    assert len(rows) == len(found["error"])
    assert rows[0].startswith("| `softmax` |") or found["error"][rows[0].split("`")[1]] == found["error"]["softmax"]
    rows = [line for line in exactness.held_lines() if line.startswith("| `")]
    assert len(rows) == len(found["held"])
    sums = [sum(map(float, re.findall(r"\d\.\d{3}", row.split("|", 4)[4]))) for row in rows]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("spec", ["routing", "linformer", "nystrom", "mixture_synthesizer", "random_synthesizer"])
def test_recorded_shares_are_those_of_today(spec):
    """Run `python docs/exactness.py` again where this fails."""
    one = exactness.recorded()["held"][spec]
    sharpness = one["sharpness"] or exactness.HELD["sharpness"][0]
    share, _ = recall(decoded(spec, 8, sharpness=sharpness, trials=exactness.HELD["trials"], dim=32))
    assert share == pytest.approx(one["recall"][0], abs=1e-3)


def test_the_page_includes_what_is_written(tmp_path):
    exactness.write(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    written = sorted(path.name for path in tmp_path.glob("*.inc"))
    assert written == ["exactness_error.inc", "exactness_held.inc"]
    assert all(f"{{include}} generated/{name}" in page for name in written)
