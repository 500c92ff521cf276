"""The generated documentation: a page for every name, with picture, options and both pieces of code; the gallery."""

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from evidence import claims
from regard import catalog, position
from regard.models import presets

DOCS = Path(__file__).parents[2] / "docs"


def module(name: str) -> ModuleType:
    """A script of the documentation, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return module("pages")


@pytest.fixture(scope="module")
def written(pages, tmp_path_factory) -> Path:
    """All pages, without running the conformance suite, which has its own tests."""
    folder = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DOCS_CHECKS", "none")
        pages.write(folder)
    return folder


@pytest.mark.parametrize("name", catalog.names())
def test_every_mechanism_has_a_page(pages, written, name):
    cls, _ = catalog.resolve(name)
    page = (written / "mechanisms" / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == [
        "What it looks at", "Options", "Example", "What it costs", "Where it wins and loses", "Facts",
        "The definition", "The algorithm",
    ]  # fmt: skip
    assert (inspect.getdoc(cls) or "").splitlines()[0] in page
    for option in pages.options(cls):
        assert f"| `{option.name}` | " in page
    for capability in cls.default_info.supports.names:
        assert capability in page.partition("## Facts")[2].partition("## The definition")[0]
    for method in ("reference", "attend"):
        (source,) = re.findall(rf"^`([\w.]+)\.{method}`$", page, re.MULTILINE)
        assert source.startswith("regard.attention.")
        assert f"def {method}(" in page
    shown = re.findall(r"!\[(\w+) attention matrix of (\w+)\]\((\S*)\)", page)
    assert {kind for kind, *_ in shown} == {
        kind for kind, causal in (("causal", True), ("bidirectional", False)) if pages.fits(cls, causal)
    }
    assert shown
    for _, owner, file in shown:
        assert owner == name
        assert (written / "mechanisms" / file).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", catalog.names())
def test_pages_are_well_formed(written, name):
    """Every code fence is closed; no table row has a stray bar."""
    page = (written / "mechanisms" / f"{name}.md").read_text(encoding="utf-8")
    assert page.count("```") % 2 == 0
    tables = re.sub(r"```.*?```", "", page, flags=re.DOTALL).split("\n\n")
    for block in (block for block in tables if block.startswith("|")):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_the_index_lists_every_page(written):
    index = (written / "mechanisms.md").read_text(encoding="utf-8")
    for name in catalog.names():
        assert f"| [{name}](mechanisms/{name}.md) | {catalog.family(name)} |" in index
        assert f"\nmechanisms/{name}\n" in index


def test_positions_and_presets(written):
    for names, file in ((position.names(), "positions.md"), (presets.names(), "presets.md")):
        page = (written / file).read_text(encoding="utf-8")
        assert re.findall(r"^## (.*)$", page, re.MULTILINE) == names
        assert page.count("```") % 2 == 0


def test_the_matrix_of_positions_is_what_the_pairs_did(pages, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DOCS_CHECKS", "all")
    monkeypatch.setattr(pages, "TESTED", tmp_path)
    page = pages.pairs_page(["softmax", "uniform", "linformer"])
    head, _, *rows = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|"))
    assert head == ["mechanism", *position.names()]
    cells = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert set(cells["softmax"].values()) == {"T S M"}
    assert (cells["uniform"]["sinusoidal"], cells["uniform"]["alibi"], cells["uniform"]["rotary"]) == (
        "T S M",
        "–",
        "–",
    )
    assert cells["linformer"]["rotary"] == "T"
    (biased,) = (line for line in page.splitlines() if line.startswith("- uniform with alibi"))
    assert "shaw_keys" in biased
    assert "adds a bias to the logits, which Uniform does not support: its weights are all equal" in biased


def test_the_contract_is_a_matrix_of_real_results(pages, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DOCS_CHECKS", "all")
    monkeypatch.setattr(pages, "TESTED", tmp_path)
    page = pages.contract_page(["uniform"])
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", page, re.MULTILINE))
    assert set(rows.pop("check").split(" | ")) == {"uniform"}
    assert len(rows) == len(pages.CHECKS)
    assert set(rows.values()) <= {"yes", "(fact)", ""}
    assert list(rows.values()).count("yes") > 30


def test_what_the_tests_found_is_not_found_again(pages, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DOCS_CHECKS", "all")
    monkeypatch.setattr(pages, "TESTED", tmp_path)
    pages.record.keep(tmp_path / "contract", "uniform", {"key_mask": "excused"})
    pages.record.keep(tmp_path / "pairs", "uniform alibi", {"forms": [], "reason": "it could not"})
    assert "| key_mask | (fact) |" in pages.contract_page(["uniform"])
    assert pages.pairs_of("uniform", ["alibi"]) == [pages.Pair("uniform", "alibi", (), "it could not")]
    assert len(pages.pairs_of("uniform", ["alibi", "timestep"])) == 2


def test_a_contract_that_does_not_hold_is_not_documented(pages, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DOCS_CHECKS", "all")
    monkeypatch.setattr(pages, "TESTED", tmp_path)
    broken = [SimpleNamespace(check="causal", status="failed", message="it leaks")]
    monkeypatch.setattr(pages, "check_attention", lambda *_, **__: broken)
    with pytest.raises(RuntimeError, match="uniform: causal: it leaks"):
        pages.contract_page(["uniform"])


def test_cost_and_state_begin_paragraphs(pages):
    text = "`window` = w.\nIt has\ntwo lines.\nCost: much.\nState (causal): *all*.\n\nMore."
    expected = ["`window` = w. It has two lines.", "", "Cost: much.", "", "State (causal): \\*all\\*.", "", "More.", ""]
    assert pages.paragraphs(text) == expected


def test_the_gallery_shows_every_mechanism():
    """Drawn by `python docs/picture.py`; run it again when the catalog grows."""
    drawn = (DOCS / "picture.svg").read_text(encoding="utf-8")
    assert re.findall(r"<text [^>]*>(\w+)</text>", drawn) == catalog.names()
    assert drawn.count("data:image/png;base64,") == len(catalog.names())


def test_how_long_claims_took_is_what_their_records_say(pages, written):
    found = [{"name": name, "seconds": seconds} for name, seconds in (("a", 180.0), ("b", 181.0), ("c", 6137.1))]
    text = pages.claims_time(found)
    assert "1 of 3 took at most 3 minutes" in text
    assert text.endswith("the slowest, in minutes: `c` 102, `b` 3.")
    assert "{include} generated/claims_time.inc" in (DOCS / "claims.md").read_text(encoding="utf-8")
    kept = [pages.recorded_claim(name) for name in claims.names()]
    assert (written / "claims_time.inc").read_text(encoding="utf-8") == pages.claims_time(
        list(filter(None, kept))
    ) + "\n"
