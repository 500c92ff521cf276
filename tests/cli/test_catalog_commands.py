"""list, info and check."""

import json
import re
from pathlib import Path

import pytest

from regard import catalog, memory, position
from regard.cli import _kinds
from regard.models import blocks, depth, presets


def test_list_shows_everything(regard):
    answer = regard("list")
    shown = set(answer.out.replace(",", " ").split())
    assert answer.code == 0
    assert {*catalog.names(), *position.names(), *memory.names(), *presets.names()} <= shown
    assert {*blocks.names(), *depth.names()} <= shown


def test_list_filters_by_name_and_capability(regard):
    assert "softmax" not in regard("list", "lin*").out
    assert "linear_transformer" in regard("list", "lin*").out
    found = json.loads(regard("list", "--supports", "causal", "state", "--json").out)
    assert list(found) == ["mechanisms"]
    assert list(found["mechanisms"]) == catalog.names(supports=["causal", "state"])
    assert "linformer" not in found["mechanisms"]


def test_list_that_matches_nothing_says_so_on_stderr(regard):
    answer = regard("list", "zz*")
    assert (answer.code, answer.out) == (0, "")
    assert "nothing matches" in answer.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("linear attention", "linear"),
        ("Nadaraya-Watson", "gaussian"),
        ("高斯核", "gaussian"),
        ("Linear-Transformer", "linear"),
    ],
)
def test_names_titles_and_other_names_are_one_search(regard, words, name):
    assert regard("info", words).out.startswith(f"mechanism {name}\n")
    assert list(json.loads(regard("list", words, "--json").out)["mechanisms"]) == [name]
    assert f"did you mean {name!r} (" in regard("check", words).err


def test_words_of_several_mechanisms_show_the_one_called_so_first(regard):
    answer = regard("info", "sliding window")
    assert answer.out.startswith("mechanism local\n")
    assert "'sliding window' also stands for" in answer.err
    assert "longformer" in answer.err
    assert "choose one of\n  local: Local window\n" in regard("check", "sliding window").err
    assert "longformer" in regard("list", "sliding window", "--supports", "state").out


@pytest.mark.parametrize("name", catalog.names())
def test_titles_are_read_without_importing(name):
    assert catalog.title(name) == catalog.outline(name).title
    assert name in catalog.search(name)


def test_list_json_holds_the_facts(regard):
    found = json.loads(regard("list", "--json").out)
    assert list(found["mechanisms"]) == catalog.names()
    for name, facts in found["mechanisms"].items():
        info = catalog.describe(name)
        assert facts["supports"] == vars(info.supports)
        assert facts["losses"] == dict(info.losses)
        assert (facts["family"], facts["time"]) == (catalog.family(name), info.time)


def _every_entry():
    lists = {"mechanism": catalog.names(), "position": position.names(), "memory": memory.names()}
    lists |= {"preset": presets.names(), "block": blocks.names(), "depth": depth.names()}
    return [f"{kind}:{name}" for kind, names in lists.items() for name in names]


@pytest.mark.parametrize("entry", _every_entry())
def test_info_of_every_entry(regard, entry):
    answer = regard("info", entry)
    assert answer.code == 0
    assert answer.out.startswith(" ".join(entry.split(":", 1)))
    found = json.loads(regard("info", entry, "--json").out)
    assert f"{found['kind']}:{found['name']}" == entry
    assert found["docstring"].splitlines()[0] in answer.out
    assert all(option in answer.out for option in found["options"])
    if not entry.startswith("preset:"):
        assert [name for name, option in found["options"].items() if not option.get("meaning")] == []


def test_info_keeps_brackets(regard):
    """They are code, not markup."""
    assert "torch.tensor([i])" in regard("info", "rotary").out
    assert "Literal[" in regard("info", "linear").out


def test_info_prefers_mechanisms_and_takes_a_kind(regard):
    assert regard("info", "performer").out.startswith("mechanism performer")
    assert regard("info", "preset:performer").out.startswith("preset performer")


def test_info_knows_every_kind_of_part():
    """A package with a file for every name says so with PACKAGE; claims and file formats are no parts of a model."""
    source = Path(catalog.__file__).parent
    found = {
        package
        for path in source.rglob("__init__.py")
        for package in re.findall(r'^PACKAGE = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(_kinds.PACKAGES.values()) == found - {"evidence.claims", "regard.integrations.architectures"}


def test_info_of_a_name_with_two_kinds_shows_both(regard):
    answer = regard("info", "fixed")
    assert answer.out.startswith("mechanism fixed\n")
    assert "\ndepth fixed\n" in answer.out
    found = json.loads(regard("info", "fixed", "--json").out)
    assert (found["kind"], [other["kind"] for other in found["also"]]) == ("mechanism", ["depth"])
    assert "also" not in json.loads(regard("info", "depth:fixed", "--json").out)


@pytest.mark.parametrize(
    ("entry", "option", "meaning"),
    [
        ("recent", "length", "positions to keep"),
        ("rotary", "fraction", "share of the channels that is rotated; the rest knows no position"),
        ("coordinates", "query_block", "rows and columns of a block; None: raster order"),
        ("llama", "mlp_dim", "width of the gated unit; None: the published rule, 8/3 dim rounded up to a multiple of "),
    ],
)
def test_info_says_what_an_option_means(regard, entry, option, meaning):
    assert json.loads(regard("info", entry, "--json").out)["options"][option]["meaning"].startswith(meaning)
    assert meaning in " ".join(regard("info", entry).out.split()) or entry == "llama"


@pytest.mark.parametrize(
    ("entry", "option", "value"),
    [("rotary(base=5.0)", "base", "5.0"), ("recent(length=3)", "length", "3"), ("llama(dim=64)", "dim", "64")],
)
def test_info_takes_the_options_of_any_kind(regard, entry, option, value):
    assert json.loads(regard("info", entry, "--json").out)["options"][option]["default"] == value


def test_a_class_by_path_takes_options(regard):
    path = "regard.attention.sparse.local:Local"
    found = json.loads(regard("info", f"{path}(window=3)", "--json").out)
    assert found["options"]["window"]["default"] == "3"
    answer = regard("info", f"{path}(windw=3)")
    assert answer.code == 2
    assert "has no option 'windw': did you mean 'window'?" in answer.err


@pytest.mark.parametrize("verb", ["info", "check"])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("local(window=4):1 + forgetting:1", "a mix over heads"),
        ("softmax + forgetting:1", "'softmax' in 'softmax + forgetting:1' must name its heads"),
        ("linear / softmax", "alternates by layer, and one mechanism is wanted: give linear or softmax"),
        ("local:4", "'local:4' gives a single mechanism some of the heads: write local"),
    ],
)
def test_more_than_one_mechanism_is_told_so(regard, verb, spec, message):
    answer = regard(verb, spec)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


@pytest.mark.parametrize("path", ["runs/001", "./nothing", "runs/", "runs/spalm", "runs/local"])
def test_info_of_a_run_that_is_not_there_says_so(regard, path):
    answer = regard("info", path)
    assert (answer.code, f"{path} is not a run: it has no config.toml" in answer.err) == (2, True), answer.err


def test_info_shows_the_facts_that_hold_with_options(regard):
    assert json.loads(regard("info", "linear", "--json").out)["rows_sum_to_one"] is True
    found = json.loads(regard("info", "linear(normalise=False)", "--json").out)
    assert found["rows_sum_to_one"] is False
    assert found["options"]["normalise"]["default"] == "False"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("softmaxx", "there is no catalog entry 'softmaxx': did you mean 'softmax'?"),
        ("position:rotry", "there is no position 'rotry': did you mean 'rotary'?"),
        ("position:linear", "there is no position 'linear'"),
        ("foo:bar", "there is no catalog entry 'foo:bar': a class by its path is module:Class, with a capital"),
        ("rotary(bse=3)", "position rotary has no option 'bse': did you mean 'base'?"),
        ("recent(length=0)", "memory recent: option length=0 is not valid"),
        ("parallel(x=1)", "block parallel has no options, got 'x'"),
        ("depth:fixed(x=1)", "depth fixed has no options, got 'x'"),
        ("llama(dims=64)", "preset llama has no field 'dims'"),
        ("linear(fature_map=relu)", "no option 'fature_map': did you mean 'feature_map'?"),
        ("os:System", "cannot import 'os:System'"),
        ("pathlib:Path", "pathlib:Path is not a subclass of"),
    ],
)
def test_info_of_what_is_not_there(regard, entry, message):
    answer = regard("info", entry)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


LEAK = '''
from typing import final
import torch
from regard.core.attention import Attended, Attention
from regard.core.info import Info, Supports

@final
class Leak(Attention):
    """Every query gets the mean of all values, the future's too."""

    default_info = Info(title="Leak", source="none", supports=Supports(causal=True, bidirectional=True))

    def attend(self, q, k, v, call):
        return Attended(v.mean(2, keepdim=True).expand(*q.shape[:3], v.shape[-1]).clone())

    def reference(self, q, k, v, call):
        return v.mean(2, keepdim=True).expand(*q.shape[:3], v.shape[-1]).clone()
'''


def test_check_of_a_third_partys_file_beside_us_finds_the_leak(regard, tmp_path):
    (tmp_path / "leaky.py").write_text(LEAK)
    answer = regard("check", "leaky:Leak", "--json")
    assert answer.code == 7
    failed = {result["check"] for result in json.loads(answer.out)["leaky:Leak"] if result["status"] == "failed"}
    assert any("causal" in check or "future" in check for check in failed), failed
    assert "FAILED" in answer.err


def test_check_says_what_passed_and_what_a_fact_excused(regard, monkeypatch):
    """The suite itself runs over every name in tests/test_conformance.py."""
    from regard import testing

    results = [
        testing.CheckResult(
            mechanism="uniform", options={"w": 1}, check=f"check_{status}", status=status, reason=f"[{status}]"
        )
        for status in ("passed", "excused")
    ]
    monkeypatch.setattr(testing, "check", lambda name, device: results)
    answer = regard("check", "uniform", "linear(feature_map=relu)")
    assert answer.code == 0
    assert "uniform: passed (1 passed, 1 excused by a fact, 0 failed, " in answer.out
    assert "linear(feature_map=relu): passed" in answer.out
    assert "check_excused" not in answer.out
    shown = regard("check", "uniform", "--verbose").out
    assert "check_excused" in shown
    assert "[excused]" in shown
    assert "w=1" in shown
    assert len(json.loads(regard("check", "all", "--json").out)) == len(catalog.names())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name what to check"),
        (["nope"], "there is no catalog entry 'nope'"),
        (["linear(foo=1)"], "mechanism linear has no option 'foo'"),
        (["pathlib:Path"], "is not a subclass of"),
        (["memory:nope"], "there is no memory 'nope': valid"),
        (["universal(steps=2)"], "is a depth, and regard check checks mechanisms"),
    ],
)
def test_check_of_what_is_not_there(regard, words, message):
    answer = regard("check", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
