"""Numbers and bytes that nobody should give: each is refused by name, or taken, and soon."""

import pytest

from regard_lab.benchmark import threads
from regard_lab.training import TrainingConfig
from tests.cli.test_calibrate import with_exits  # noqa: F401  # a fixture

HUGE = str(10**20)
FEW = ["--passages", "60", "--length", "8", "--thresholds", "0.9", "0.1"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--risk", "1e-300"], 2, "takes more than 1,125,899,906,842,624 items"),
        (["--risk", "1e-12"], 3, "60 calibration passages certify no threshold"),
        (["--risk", "0.9", "--length", HUGE], 3, "choose a smaller --length"),
        (["--risk", "0.9", "--length", str(10**18)], 3, "choose a smaller --length"),
        (["--risk", "0.9", "--batch-size", HUGE, "--out", "found"], 0, ""),
        (["--risk", "0.9", "--threads", "100000"], 2, "threads must be at most 1024"),
        (["--risk", "0.9", "--threads", str(10**12)], 2, "threads must be at most 1024"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_calibrate(regard, with_exits, words, code, said):  # noqa: F811
    answer = regard("calibrate", with_exits, "--threads", "1", *FEW, *words)
    assert (answer.code, said in answer.err) == (code, True), answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["cache", "run"],
        ["accuracy"],
        ["capacity"],
        ["retrieval"],
        ["rounding"],
        ["bench", "softmax"],
        ["compare", "softmax", "linear"],
        ["train"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("count", ["100000", str(10**12)])
def test_threads(regard, run, words, count):
    answer = regard(*words, "--threads", count)
    assert (answer.code, "threads must be at most 1024" in answer.err) == (2, True), answer.err


def test_threads_of_the_environment(regard, run, monkeypatch):
    assert TrainingConfig(threads=threads.MOST).threads == threads.MOST
    for count in ("1025", HUGE):
        monkeypatch.setenv(threads.VARIABLE, count)
        answer = regard("cache", "run")
        assert (answer.code, "set it to a number from 1 to 1024" in answer.err) == (2, True), answer.err


def test_pass_keys_have_places(regard, run, text):
    answer = regard(
        "cache", "run", "--corpus", text, "--budgets", "8", "--context", "24", "--scored", "8", "--keys", HUGE
    )
    assert (answer.code, "keys must be at most the 24 tokens of the context" in answer.err) == (2, True), answer.err


def test_an_index_has_no_more_probes_than_entries(regard, run, text):
    pytest.importorskip("faiss", reason="the knn extra is not installed")
    assert regard("knn", "build", text, "--model", "run", "--out", "store", "--index", "ivf", "hnsw").code == 0
    words = [
        "generate",
        "run",
        "1",
        "--datastore",
        "store",
        "--max-new-tokens",
        "2",
        "--temperature",
        "0",
        "--knn.k",
        "2",
    ]
    for kind in ("ivf", "hnsw"):
        for probes in (str(10**18), HUGE):
            answer = regard(*words, "--knn.index", kind, "--knn.probes", probes)
            assert answer.code == 0, answer.err
            if kind == "ivf":  # every centre is looked into
                assert answer.out == regard(*words).out


@pytest.mark.parametrize("words", [["knn", "search", "store", "-", "--model", "run"], ["explore", "run", "-"]])
def test_standard_input_that_is_not_utf_8_is_named(regard, run, text, words):
    assert regard("knn", "build", text, "--model", "run", "--out", "store").code == 0
    answer = regard(*words, stdin=b"12 \xff is")
    assert (answer.code, "standard input is not UTF-8 at byte 3" in answer.err) == (3, True), answer.err


@pytest.mark.parametrize("verb", ["calibrate", "cache", "evaluate"])
def test_a_corpus_without_a_name_is_not_another_one(regard, with_exits, verb):  # noqa: F811
    """Neither the default one nor what is in this folder."""
    answer = regard(verb, with_exits, "--corpus", "", *(["--risk", "0.9", *FEW] if verb == "calibrate" else []))
    assert (answer.code, "the corpus has no name" in answer.err) == (3, True), answer.err
