"""`regard tokens`: built, verified and described; and what trains, evaluates and continues on a store."""

import json
import shutil
from pathlib import Path

import pytest

from tests.tokens.conftest import contents, write


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with a corpus, a store of bytes and one of bpe. Never to be changed."""
    from regard.cli.main import main

    folder = tmp_path_factory.mktemp("tokens")
    write(folder / "corpus", 300)
    (folder / "table.csv").write_text("text\nto be\n")
    words = ["tokens", "build", str(folder / "corpus"), "--separator", "||", "--holdout", "0.1"]
    assert main([*words, "--out", str(folder / "store"), "--processes", "1"]) == 0
    assert main([*words, "--out", str(folder / "bpe"), "--tokenizer", "bpe", "--vocab-size", "300"]) == 0
    return folder


def trained(regard, tiny, corpus: Path, out: str, *words: object) -> Path:
    answer = regard(
        "train", *tiny, "--task.corpus", corpus, "--out", out, "--steps", 4, "--checkpoint-every", 2, *words
    )
    assert answer.code == 0, answer.err
    return Path(out)


def test_build_says_what_is_in_it(regard, built):
    answer = regard("tokens", "stats", built / "bpe", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["tokenizer"], found["vocab_size"], found["shards"]) == (0, "bpe", 300, 1)
    assert sum(each["documents"] for each in found["splits"].values()) == 300
    assert found["bytes"] == sum((built / "bpe" / f"00000000.{kind}").stat().st_size
                                 for kind in ("ids", "sums", "train", "valid", "test"))  # fmt: skip
    assert "300" in regard("tokens", "stats", built / "bpe").out
    assert regard("tokens", "verify", built / "bpe").code == 0


@pytest.mark.parametrize("task", ["text", "masked"])
def test_a_run_on_a_store_resumes_with_the_same_bits(regard, tiny, built, tmp_path, task):
    words = ("--task", task, *tiny, "--task.corpus", built / "bpe", "--steps", 4, "--checkpoint-every", 2)
    assert regard("train", *words, "--out", "run").code == 0
    shutil.copytree("run", "copy")
    last = sorted(Path("copy/checkpoints").glob("step*"))[-1]
    shutil.rmtree(last)
    assert regard("train", "--resume", "copy").code == 0
    for name, data in contents(last).items():
        assert not name.endswith(".safetensors") or data == (Path("run/checkpoints") / last.name / name).read_bytes()
    answer = regard("evaluate", "run", "--json", "--split", "test", "--limit", 20)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["tokens"] > 20


def test_a_run_starts_from_one_on_a_store_and_is_evaluated_on_another(regard, tiny, built, tmp_path):
    run = trained(regard, tiny, built / "bpe", "run")
    words = ("--task.length", 32, "--batch-size", 4, "--warmup", 1, "--steps", 2)
    assert regard("train", "--from", run, "--task.corpus", built / "bpe", *words, "--out", "again").code == 0
    refused = regard("train", "--from", run, "--task.corpus", built / "store", *words, "--out", "other")
    assert refused.code == 3
    assert "was built with another tokenizer" in refused.err
    answer = regard("tokens", "build", built / "corpus", "--out", "own", "--tokenizer", run, "--holdout", 0.2)
    assert answer.code == 0, answer.err
    assert regard("evaluate", run, "--corpus", "own", "--limit", 10).code == 0
    assert regard("evaluate", run, "--corpus", built / "corpus", "--separator", "||", "--token-files", "c").code == 0


def test_a_store_that_changed_is_not_gone_on_with(regard, tiny, built, tmp_path):
    shutil.copytree(built / "store", tmp_path / "moved")
    run = trained(regard, tiny, tmp_path / "moved", "run")
    shutil.rmtree(tmp_path / "moved")
    shutil.copytree(built / "bpe", tmp_path / "moved")
    answer = regard("train", "--resume", run, "--steps", 6)
    assert answer.code in (3, 4)
    assert "other" in answer.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("build", "{}/corpus"), 2, "needs --out"),
        (("build", "{}/table.csv", "--out", "x", "--field", "no"), 3, "choose one with --field"),
        (("build", "{}/corpus", "--out", "x", "--vocab-size", "300"), 2, "--vocab-size is for --tokenizer bpe"),
        (("build", "{}/corpus", "--out", "x", "--tokenizer", "gone.json"), 2, "there is no tokenizer 'gone.json'"),
        (("build", "{}/gone", "--out", "x"), 3, "no folder and no file"),
        (("build", "{}/corpus", "--out", "x", "--holdout", "0.5"), 2, "holdout"),
        (("build", "{}/corpus", "--out", "{}/store"), 2, "nothing is ever overwritten"),
        (("verify", "{}/store", "--holdout", "0.2"), 2, "has no use for --holdout"),
        (("stats", "{}/corpus"), 2, "is no token store"),
    ],
)
def test_wrong_words_are_refused(regard, built, words, code, said):
    answer = regard("tokens", *(word.format(built) for word in words))
    assert answer.code == code
    assert said in answer.err
    assert {path.name for path in Path("x").glob("*")} <= {"token_build.json", "tokenizer.json"}  # no token yet
