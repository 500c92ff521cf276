"""`python -m evidence.claims`: listing, measuring, files, exit codes, bad input."""

import json
import os

import pytest

from evidence import claims
from evidence.claims.__main__ import main
from evidence.claims.attention_rank_by_layer import AttentionRankByLayer
from evidence.claims.dot_product_variance import DotProductVariance
from regard.core.errors import ConfigError
from regard.files.checksums import sealed

NAME = "dot_product_variance"


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run it in an empty folder: code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *capsys.readouterr()

    return call


def test_without_names_all_are_listed_and_nothing_is_written(command, tmp_path):
    code, out, _ = command()
    assert code == 0
    assert all(name in out for name in claims.names())
    assert list(tmp_path.iterdir()) == []
    listed = json.loads(command("--json")[1])
    assert set(listed) == set(claims.names())
    assert listed[NAME]["source"] == claims.outline(NAME).source


def test_a_claim_leaves_its_numbers_and_a_page(command, tmp_path):
    code, out, err = command("dot*", "--quick", "--out", "here")
    assert code == 0
    assert "HOLDS (small form: no evidence)" in out
    assert "measuring 3 seeds" in err
    assert "control: variance of logits along one axis" in out
    found = json.loads((tmp_path / "here" / f"{NAME}.json").read_text())
    assert (found["name"], found["tiny"], found["seeds"], found["settings"]["keys"]) == (NAME, True, [0, 1, 2], 16)
    assert found["version"]
    assert found["environment"]["torch"]
    assert len(found["observations"]) == 3
    html = (tmp_path / "here" / "claims.html").read_text()
    assert "Plotly.react" in html
    assert found["says"] in html
    assert html.count("<script") == 2


def test_machine_output_is_all_that_stdout_holds(command):
    code, out, err = command(NAME, "--quick", "--json", "--seeds", "4")
    assert code == 0
    assert len(json.loads(out)[NAME]["observations"]) == 4
    assert "The dot product of two vectors" in err


def test_the_page_shows_what_the_folder_holds_from_before(command, tmp_path):
    command(NAME, "--quick")
    saved = json.loads((tmp_path / "claims" / f"{NAME}.json").read_text())
    other = {**saved, "name": "silent_head", "title": "An older result"}
    (tmp_path / "claims" / "silent_head.json").write_text(json.dumps(sealed(other)))
    command(NAME, "--quick")
    assert "An older result" in (tmp_path / "claims" / "claims.html").read_text()


def test_what_cannot_be_measured_here_does_not_stop_the_others(command, tmp_path, monkeypatch):
    """Weights that are not installed are refused when they are needed; what is named after them is measured."""
    monkeypatch.setattr(AttentionRankByLayer, "tiny", {"network": "package:unknown"})
    code, _, err = command("attention_rank_by_layer", NAME, "--quick")
    assert code == ConfigError.exit_code
    assert "attention_rank_by_layer: no package 'unknown' is known to carry weights" in err
    assert [path.name for path in sorted(tmp_path.glob("claims/*"))] == ["claims.html", f"{NAME}.json"]


def test_seeds_may_begin_elsewhere_and_the_record_says_of_what_code(command, tmp_path):
    code, out, _ = command("rank_of_attention", "--quick", "--first-seed", "100")
    assert code == 0
    assert "Revised after a look: Ranks were judged by themselves" in out
    assert "These seeds had not been seen." in " ".join(out.split())
    found = json.loads((tmp_path / "claims" / "rank_of_attention.json").read_text())
    assert found["seeds"] == [100, 101, 102]
    assert found["revised_after_look"]["fresh_seeds"] is True
    assert len(found["sources"]["claim"]) == len(found["sources"]["package"]) == 64
    assert (found["withdrawn"], found["timed"]) == (None, False)
    html = (tmp_path / "claims" / "claims.html").read_text()
    assert "Revised after a look" in html
    assert f"the claim&#39;s file {found['sources']['claim'][:12]}" in html
    assert "--seeds 3 --first-seed 100" in html


@pytest.mark.parametrize("seeds", [[0], [2, 100], [100]])
def test_seeds_that_had_been_seen_are_not_fresh(seeds):
    claim = claims.build("rank_of_attention", tiny=True)
    revised = claims.measure(claim, seeds, tiny=True)["revised_after_look"]
    assert revised["fresh_seeds"] == (seeds == [100])
    assert revised["seen"] == [0, 1, 2]


def test_a_missed_control_exits_with_7_and_a_failed_claim_with_0(command, monkeypatch):
    monkeypatch.setattr(DotProductVariance, "tiny", {**DotProductVariance.tiny, "plain": "softmax"})
    code, out, _ = command(NAME, "--quick")
    assert code == 7
    assert "INCONCLUSIVE" in out
    assert "MISSED" in out
    wrong = {"dims": (4, 32, 256), "rows": 512, "scaled": "softmax(scale=1.0)"}
    monkeypatch.setattr(DotProductVariance, "tiny", wrong)
    code, out, _ = command(NAME, "--quick")
    assert code == 0
    assert "DOES NOT HOLD" in out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["dot_product_varianc"], 2, "unknown claim 'dot_product_varianc': did you mean 'dot_product_variance'?"),
        ([NAME, "--seeds", "2"], 2, "claim dot_product_variance needs at least 3 seeds"),
        ([NAME, "--threads", "0"], 2, "claims need at least one thread"),
        ([NAME, "--first-seed", "-1"], 2, "seeds of 0 or more"),
        (["hybrid_recall", "--seeds", "4"], 2, "claim hybrid_recall needs at least 5 seeds, got --seeds 4"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_measured(command, tmp_path, words, code, says):
    got, _, err = command(*words)
    assert got == code
    assert says in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


UNSEALED, OTHER = "can be believed (it has no checksum);", "holds no results of a claim"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.write_text('{"format": 1}'), f"{OTHER} that {UNSEALED}"),
        (lambda path: path.write_text(json.dumps({**sealed({"a": 1}), "a": 2})), "(its checksum differs from its"),
        (lambda path: path.mkdir(), "cannot read claims/silent_head.json: Is a directory;"),
        (lambda path: os.mkfifo(path), "it is no plain file but a pipe, a socket or a device;"),
        (lambda path: path.write_text("{"), OTHER),
        (lambda path: path.write_text("[]"), OTHER),
        (lambda path: path.write_text(json.dumps(sealed({"format": "other"}))), OTHER),
        (
            lambda path: path.write_text(json.dumps(sealed({"format": claims.FORMAT, "name": "post_softmax"}))),
            "silent_head.json holds results of another claim, 'post_softmax'",
        ),
    ],
)
def test_what_cannot_be_believed_is_said_in_one_line(command, tmp_path, make, says):
    (tmp_path / "claims").mkdir()
    make(tmp_path / "claims" / "silent_head.json")
    code, _, err = command(NAME, "--quick")
    assert code == 3
    assert says in err
    assert "[Errno" not in err
    assert err.endswith("remove it and measure the claim again, or choose another --out\n")


@pytest.mark.parametrize("part", ["findings", "controls", "reason", "withdrawn"])
def test_results_that_lack_a_part_are_refused(command, tmp_path, part):
    """Sealed, so that nothing says that they are damaged."""
    assert command(NAME, "--quick")[0] == 0
    path = tmp_path / "claims" / f"{NAME}.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(sealed({name: value for name, value in whole.items() if name not in (part, "sha256")})))
    code, _, err = command(NAME, "--quick")
    assert code == 3
    assert f"{NAME}.json lacks a part of the results that its page shows" in err
    assert part in err
    assert err.endswith("remove it and measure the claim again, or choose another --out\n")
