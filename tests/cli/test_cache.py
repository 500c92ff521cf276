"""regard cache: a run and its text."""

import json


def test_of_a_run(regard, run, tmp_path):
    words = ["cache", "run", "--budgets", "40", "--context", "100", "--scored", "4", "--texts", "1", "--keys", "1"]
    answer = regard(*words, "--threads", "1", "--out", "found", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert {row["policy"] for row in found["rows"]} >= {"none", "h2o", "snapkv", "streaming", "random", "quantized"}
    assert json.loads((tmp_path / "found" / "results.json").read_text()) == found
    assert (tmp_path / "found" / "cache.html").exists()


def test_what_has_no_cache(regard, recall_run):
    answer = regard("cache", recall_run)
    assert (answer.code, answer.out) == (2, "")
    assert "is no decoder with a tokenizer" in answer.err
