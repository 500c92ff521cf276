"""The log can be read by a newcomer: every section says first what was wanted, what was done and what came out."""

import re
from pathlib import Path

import pytest

LOG = (Path(__file__).parents[2] / "LOG.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## ", LOG, flags=re.MULTILINE)[1:]}


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_opens_with_three_sentences(title):
    assert re.match(r"\d{4}-\d\d-\d\d \S+ \S+", title)
    opening = SECTIONS[title].strip().partition("\n\n")[0]
    assert opening[0].isupper()
    assert len(re.findall(r"\.(?=\s|$)", opening)) == 3
    assert max(map(len, re.split(r"\.\s", opening))) < 400
