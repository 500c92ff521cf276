"""Files and words that no honest caller gives: one line, in time, and never a traceback."""

import gzip
import os
import subprocess
import sys
import time
import zipfile

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


def test_deep_lines_of_json(regard, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    answer = regard(*TRAIN, "--task.corpus", "c.jsonl")
    assert answer.code == 3
    assert "c.jsonl, line 1: no JSON" in answer.err


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


@pytest.mark.parametrize("words", [("list",), ("--help",)])
def test_output_that_nobody_reads(environment, tmp_path, words):
    command = f"{sys.executable} -m regard.cli.main {' '.join(words)}"
    done = subprocess.run(["sh", "-c", f"{command} | true"], env=environment, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_bomb_is_not_unpacked(regard, tmp_path):
    def idx(shape, data=b""):
        return b"\0\0\x08" + bytes([len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + data

    path = tmp_path / "train-images-idx3-ubyte.gz"
    for said, data in (((1 << 16, 1 << 15, 1), b""), ((1 << 31,) * 3, b""), ((2, 3, 4), bytes(1 << 26))):
        path.write_bytes(gzip.compress(idx(said, data)))
        began = time.process_time()
        answer = regard(*TRAIN, "--task", "images", "--task.data", path.name)
        assert (answer.code, answer.err.count("\n")) == (3, 1)
        assert "says that it holds" in answer.err
        assert time.process_time() - began < 3
    with zipfile.ZipFile(tmp_path / "images.npz", "w") as packed, packed.open("images.npy", "w") as file:
        head = {"descr": "|u1", "fortran_order": False, "shape": (1 << 31, 8, 8)}
        np.lib.format.write_array_header_1_0(file, head)
        file.write(bytes(1000))
    answer = regard(*TRAIN, "--task", "images", "--task.data", "images.npz")
    assert (answer.code, answer.err.count("\n")) == (3, 1)
    assert "images.npy says that it holds (2147483648, 8, 8) uint8 and is not that long" in answer.err


@pytest.mark.parametrize("largest", [1 << 40, 1 << 16])
def test_classes_without_end(regard, tmp_path, largest):
    images, labels = np.zeros((9, 8, 8), np.uint8), np.arange(9)
    labels[3] = largest
    np.savez(tmp_path / "i.npz", train_images=images, test_images=images, train_labels=labels, test_labels=labels)
    answer = regard(*TRAIN, "--task", "classification", "--task.data", "i.npz")
    assert answer.code == 3
    assert f"train_labels has class {largest}; classes are numbers below 65536" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("--batch-size", str(1 << 40)),
        ("--batch-size", "9" * 20),
        ("--steps", "9" * 20),
        ("--task.tokenizer", "bpe", "--task.vocab-size", str(1 << 40)),
    ],
)
def test_numbers_beyond_any_machine(regard, text, tiny, words):
    answer = regard("train", *tiny, "--steps", "1", "--task.corpus", text, "--task.cache", "cache", *words)
    assert answer.code == 2
    assert words[-1] in answer.err
