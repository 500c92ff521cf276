"""The tables of the page on exact retrieval."""

import importlib.util
import sys
from pathlib import Path

import pytest

from evidence import claims
from regard import catalog

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("docs_retrieval", DOCS / "retrieval.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_line_has_the_verdict_that_was_recorded(tables):
    for rows in (tables.REASONS, tables.REMEDIES, tables.USES):
        lines = tables.verdicts(rows)[2:]
        findings = [one for row in rows for one in row.findings]
        assert len(lines) == len(findings)
        for line, (name, title) in zip(lines, findings, strict=True):
            assert title in [one.title for one in claims.build(name).findings]
            assert f"**{tables.finding(name, title)['verdict']}**" in line
            assert line.count("|") == 7


def test_every_causal_mechanism_was_trained(tables):
    trained = {row["spec"].partition("(")[0] for row in tables.recorded()["rows"]}
    causal = set(catalog.names(supports=("causal",)))
    assert causal <= trained
    told = tables.trained()[-1]
    assert all((f"`{name}`" in told) is (name not in causal) for name in catalog.names())
    assert all(one["reached"] for one in tables.recorded()["controls"])


def test_the_page_includes_what_is_written(tables, tmp_path, monkeypatch):
    monkeypatch.setattr("regard_lab.report._page.plotly.offline.get_plotlyjs", lambda: "")
    tables.write(tmp_path)
    page = (DOCS / "retrieval.md").read_text(encoding="utf-8")
    written = sorted(path.name for path in tmp_path.glob("*.inc"))
    assert len(written) == 5
    assert all(f"{{include}} generated/{name}" in page for name in written)
    assert "constant" in (tmp_path / "retrieval_costs.inc").read_text()
    assert '<a href="retrieval.html">' in page
    assert (tmp_path / "extra" / "retrieval.html").exists()
