"""The log, changelog and citation match the tree: the names that they give exist, and a release is one page."""

import importlib.util
import json
import re
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import regard
from evidence import claims
from regard.cli.main import verbs
from regard.core.errors import RegardError
from regard.core.info import Heads

ROOT = Path(__file__).parents[2]
LOG = (ROOT / "LOG.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = {part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## ", LOG, flags=re.MULTILINE)[1:]}
VERDICTS = {"holds", "does not hold", "inconclusive"}


def named(text: str) -> list[str]:
    """Code spans and links of a page, without the first cells of a table of removed features."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        if table.startswith("| removed"):
            text = text.replace(table, re.sub(r"^\|[^|]*\|", "|", table, flags=re.MULTILINE))
    return re.findall(r"`([^`]+)`", text) + re.findall(r"\]\((?!http)([^)]+)\)", text)


@cache
def _words() -> set[str]:
    files = [ROOT / "Makefile", *(path for top in ("src", "evidence", "tests") for path in (ROOT / top).rglob("*.py"))]
    texts = (path.read_text(encoding="utf-8") for path in files if path != Path(__file__))
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _builds(spec: str) -> bool:
    for causal in (True, False):
        with suppress(RegardError):
            regard.build(spec, Heads(count=4, key_dim=8, causal=causal, max_length=512))
            return True
    return False


def exists(name: str) -> bool:
    """True if the path, command, make target, module, specification or identifier exists."""
    first, *rest = name.split()
    if "/" in first or re.fullmatch(r"[A-Z]+\.md", first):
        return (ROOT / first.partition("#")[0]).exists()
    if first == "regard" and rest:
        return rest[0] in verbs()
    if first == "make" and rest:
        return re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE) is not None
    if name.startswith("python -m "):
        return importlib.util.find_spec(rest[1]) is not None
    if first.partition("(")[0] in regard.names():
        return all(_builds(spec) for spec in name.split(" / "))
    return {word.replace("-", "_") for word in re.findall(r"[^\W\d][\w-]{2,}", name)} <= _words()


@pytest.mark.parametrize("release", PAGES)
def test_a_page_names_what_exists(release):
    assert not [name for name in named(PAGES[release]) if not exists(name)]


@pytest.mark.parametrize(
    "gone",
    ["src/regard/rows.py", "LOGS.md", "regard claims", "make claims", "python -m evidence.none", "local(windows=3)"],
)
def test_what_does_not_exist_is_noticed(gone):
    assert not exists(gone)
    assert not exists("--parallel.hea" + "ds-of-none")
    table = f"| removed | price |\n|---|---|\n| `nothing` | `{gone}` |\n"
    assert named(table) == [gone]


@pytest.mark.parametrize("release", PAGES)
def test_a_release_is_one_page(release):
    assert re.fullmatch(r"\d+\.\d+\.\d+( \(not yet released\))?", release)
    assert len(PAGES[release].splitlines()) < 130
    headings = re.findall(r"^### (.*)", PAGES[release], re.MULTILINE)
    assert "What did not work" in headings


def test_dropped_claims_are_gone_and_have_one_verdict():
    section = re.split(
        r"^### ", PAGES[next(iter(PAGES))].partition("### Claims that are gone\n")[2], flags=re.MULTILINE
    )[0]
    items = re.findall(r"^- ([^:]+): ((?:.*\n)(?: .*\n)*)", section, re.MULTILINE)
    assert {reason.lower().rpartition(", ")[2] for reason, _ in items} == VERDICTS
    dropped = [name for _, text in items for name in re.findall(r"\w+", text)]
    assert len(dropped) == len(set(dropped)) == int(re.findall(r"\d+", section)[0])
    assert not set(dropped) & set(claims.names())


def test_verdicts_of_the_claims_that_stay_are_counted_right():
    files = [ROOT / "docs" / "recorded" / "claims" / f"{name}.json" for name in claims.names()]
    verdicts = Counter(json.loads(path.read_text(encoding="utf-8"))["verdict"] for path in files if path.exists())
    stays = re.search(r"(\d+) stay: (\d+) hold, (\d+) do not\s+hold, (\d+) are\s+inconclusive", LOG)
    assert stays is not None
    assert [int(number) for number in stays.groups()] == [
        len(claims.names()),
        *(verdicts[verdict] for verdict in ("holds", "does not hold", "inconclusive")),
    ]


def test_releases_are_those_of_the_changelog_and_the_newest_is_this_version():
    releases = [title.partition(" ")[0] for title in PAGES]
    assert releases[0] == regard.__version__
    assert re.findall(r"^## \[([\d.]+)\]", CHANGELOG, re.MULTILINE) == releases
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {regard.__version__}\n" in citation


def test_paths_of_the_changelog_exist():
    paths = [name for name in named(CHANGELOG) if re.fullmatch(r"[\w/]+\.(md|py|json)", name)]
    assert paths
    assert all((ROOT / name).exists() for name in paths)
