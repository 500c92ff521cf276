"""What tests found serves the documentation of the same sources only."""

from regard.testing import record


def test_what_is_kept_is_found_until_the_sources_change(tmp_path, monkeypatch):
    assert record.kept(tmp_path, "softmax") is None
    record.keep(tmp_path / "new", "softmax", {"causality": "passed"})
    assert record.kept(tmp_path / "new", "softmax") == {"causality": "passed"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["softmax.json"]
    monkeypatch.setattr(record, "sources", lambda: "others")
    assert record.kept(tmp_path / "new", "softmax") is None


def test_sources_are_read(monkeypatch):
    import regard

    here = record.sources.__wrapped__()
    assert here == record.sources()
    monkeypatch.setattr(regard, "__file__", record.__file__)
    assert record.sources.__wrapped__() != here
