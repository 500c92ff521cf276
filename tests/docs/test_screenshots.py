"""Screens are as wide as the screenshots say, which windows are not, and what is wrong on a page is seen."""

import shutil
from pathlib import Path

import pytest

from docs import screenshots

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


@pytest.mark.parametrize(("width", "wrong"), [(390, ["page at 390 is 68 pixels wider than its screen"]), (1400, [])])
def test_a_page_is_shown_as_wide_as_its_picture(tmp_path: Path, width: int, wrong: list[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><body style='margin: 8px'><div style='width: 450px'>wide</div></body>")
    assert screenshots.seen(page, "page", width, tmp_path, tmp_path) == wrong
    picture = (tmp_path / f"page-{width}.png").read_bytes()
    assert int.from_bytes(picture[16:20], "big") == width
