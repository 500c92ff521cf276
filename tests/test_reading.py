"""What is in a folder, and what is not known of it."""

import pytest

from regard.files.reading import found_in


def test_what_cannot_be_read_is_not_empty(tmp_path):
    """Of `Path.glob` it is, on Python 3.12, and the catalog would know no name."""
    (tmp_path / "here.py").touch()
    with pytest.raises(OSError, match="Not a directory"):
        found_in(tmp_path / "here.py", ".py")
    assert [path.name for path in found_in(tmp_path, ".py")] == ["here.py"]
