"""A comparison in Python tells of its progress, as on the command line."""

import regard
from regard_lab.benchmark import comparison
from regard_lab.report import html


def test_lines_go_to_standard_error_unless_somebody_takes_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(comparison, "compare", lambda config, out, *, tell: tell("planning") or {})
    monkeypatch.setattr(html, "write", lambda results, path, language: None)
    regard.compare(out=tmp_path)
    assert capsys.readouterr() == ("", "planning\n")
    taken: list[str] = []
    regard.compare(out=tmp_path, tell=taken.append)
    assert (taken, capsys.readouterr()) == (["planning"], ("", ""))
