"""Files and words that no honest caller gives: one line, in time, and never a traceback."""

import os

import numpy as np
import pytest

TRAIN = ("train", "--steps", "1", "--out", "out")
VERBS = {
    "corpus.txt": (*TRAIN, "--task.corpus"),
    "corpus.jsonl": (*TRAIN, "--task.corpus"),
    "pairs.tsv": (*TRAIN, "--task", "translation", "--task.corpus"),
    "config.toml": (*TRAIN, "--config"),
    "images.npz": (*TRAIN, "--task", "classification", "--task.data"),
    "train-images-idx3-ubyte.gz": (*TRAIN, "--task", "images", "--task.data"),
    "weights.gguf": ("generate",),
    "results.json": ("report",),
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_not_read(regard, tmp_path, name, kind):
    os.mkfifo(tmp_path / name) if kind == "pipe" else (tmp_path / name).symlink_to("/dev/zero")
    answer = regard(*VERBS[name], name)
    assert answer.code in (2, 3, 4)
    assert name in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [("info",), (*TRAIN, "--task.corpus"), ("train", "--out")])
def test_words_that_are_not_utf8(regard, tmp_path, words):
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("some text " * 90)
    answer = regard(*words, name)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "is not UTF-8" in answer.err


def test_files_of_a_folder_may_have_any_name(regard, tmp_path, tiny):
    (tmp_path / "texts").mkdir()
    for at in range(9):
        (tmp_path / "texts" / os.fsdecode(b"caf\xe9%d.txt" % at)).write_text(f"some text {at} " * 90)
    words = ("train", *tiny, "--steps", "1", "--task.corpus", "texts", "--task.cache", "cache", "--out", "run")
    assert regard(*words).code == 0


@pytest.mark.parametrize("largest", [1 << 40, 1 << 16])
def test_classes_without_end(regard, tmp_path, largest):
    images, labels = np.zeros((9, 8, 8), np.uint8), np.arange(9)
    labels[3] = largest
    np.savez(tmp_path / "i.npz", train_images=images, test_images=images, train_labels=labels, test_labels=labels)
    answer = regard(*TRAIN, "--task", "classification", "--task.data", "i.npz")
    assert answer.code == 3
    assert f"train_labels has class {largest}; classes are numbers below 65536" in answer.err
