"""evaluate, generate and checkpoint: what is done with a run, sound or damaged."""

import json
import math
import subprocess
import sys

import pytest
import safetensors.torch

import regard as package


def test_evaluate(regard, run):
    answer = regard("evaluate", "run", "--limit", "5", "--json")
    found = json.loads(answer.out)
    assert (answer.code, found["split"], found["task"], found["tokens"]) == (0, "valid", "text", 5 * 32)
    assert found["bits_per_byte"] == pytest.approx(sum(found["documents"]["nats"]) / math.log(2) / (5 * 32))
    shown = regard("evaluate", "run", "--limit", "5").out
    assert f"{found['bits_per_byte']:.4f}" in shown
    assert "documents" not in shown


def test_evaluate_on_another_split_and_text(regard, run, tmp_path):
    (tmp_path / "other.txt").write_text("something else altogether\n" * 200)
    values = {
        json.loads(regard("evaluate", "run", *words, "--limit", "3", "--json").out)["nats_per_token"]
        for words in ([], ["--split", "test"], ["--corpus", "other.txt"])
    }
    assert len(values) == 3


def test_evaluate_without_text_shows_no_bits(regard, recall_run):
    answer = regard("evaluate", recall_run)
    assert answer.code == 0
    assert "accuracy" in answer.out
    assert "bits_per_byte" not in answer.out
    answer = regard("evaluate", recall_run, "--corpus", "song_ci")
    assert (answer.code, answer.out) == (2, "")
    assert "was trained on recall, which takes no --corpus" in answer.err


def test_generate_equals_the_python_interface(regard, run):
    answer = regard("generate", "run", "12 is", "--max-new-tokens", "30", "--temperature", "1.0", "--seed", "3")
    assert answer.code == 0
    wanted = package.load(run).generate("12 is", max_new_tokens=30, temperature=1.0, seed=3)
    assert answer.out == wanted + "\n"
    assert answer.err == ""


def test_generate_streams_utf8_whatever_the_locale(run, environment):
    ascii_only = {**environment, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "regard.cli.main", "generate", str(run), "-", "--max-new-tokens", "40"]
    found = subprocess.run(command, input="宋".encode(), capture_output=True, env=ascii_only, timeout=60)
    assert (found.returncode, found.stderr) == (0, b"")
    found.stdout.decode("utf-8")
    assert any(byte > 127 for byte in found.stdout)  # an untrained model draws any byte


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", ""], 3, "prompt 0 is empty"),
        (["run", "a", "--temperature", "-1"], 2, "temperature must be at least 0"),
        (["run", "a", "--device", "tpu"], 2, "invalid choice 'tpu'"),
        (["run"], 2, "run reads text: give it after the run"),
        (["run", "\udcff"], 3, "surrogate"),
        (["nowhere", "a"], 2, "nowhere is not a run"),
    ],
)
def test_generate_refuses(regard, run, words, code, message):
    answer = regard("generate", *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_bytes_on_stdin_that_are_no_text(regard, run):
    answer = regard("generate", "run", "-", stdin=b"\xff\xfe")
    assert (answer.code, answer.out) == (3, "")


def test_a_run_without_text_generates_none(regard, recall_run):
    answer = regard("generate", recall_run, "a")
    assert (answer.code, answer.out) == (2, "")
    assert "was trained on recall, which has no text" in answer.err


def test_checkpoints_are_listed_verified_and_exported(regard, run, tmp_path):
    names = ["step-00000002", "step-00000004"]
    listed = json.loads(regard("checkpoint", "list", "run", "--json").out)
    assert [row["checkpoint"] for row in listed] == names
    assert {row["state"] for row in listed} == {"not verified"}
    files = [path for path in (run / "checkpoints" / names[0]).iterdir() if path.name != "manifest.json"]
    size = sum(path.stat().st_size for path in files)
    assert listed[0]["bytes"] == size
    assert f"{size:,}" in regard("checkpoint", "list", "run").out
    verified = json.loads(regard("checkpoint", "verify", "run", "--json").out)
    assert {row["state"] for row in verified} == {"sound"}
    answer = regard("checkpoint", "export", "run", "--out", "model.safetensors", "--json")
    assert json.loads(answer.out) == {"checkpoint": f"run/checkpoints/{names[1]}", "out": "model.safetensors"}
    exported = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert exported["embeddings.table.weight"].shape == (256, 16)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["export", "run"], 2, "export needs --out"),
        (["export", "run", "--out", "taken"], 2, "taken exists; choose another name"),
        (["export", "run", "--out", "taken/below"], 6, "cannot write taken/below"),
        (["export", "run", "--out", "/proc/model"], 6, "cannot write /proc/model"),
        (["verify", "run", "--out", "x"], 2, "--out is for export"),
        (["list", "nowhere"], 2, "nowhere is not a run"),
        (["lst", "run"], 2, "lst"),
    ],
)
def test_checkpoint_refuses(regard, run, tmp_path, words, code, message):
    (tmp_path / "taken").write_text("mine")
    answer = regard("checkpoint", *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err
    assert (tmp_path / "taken").read_text() == "mine"


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = [
    lambda saved: flip(saved / "model.safetensors"),
    lambda saved: (saved / "manifest.json").unlink(),
]


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json"])
def test_verify_looks_at_what_the_run_began_with(regard, run, name):
    path = run / name
    path.write_text(path.read_text()[:-3])
    answer = regard("checkpoint", "verify", "run", "--json")
    assert answer.code == 4
    assert f"{name} is damaged" in answer.err
    assert {row["state"] for row in json.loads(answer.out)} == {"sound"}
    assert regard("checkpoint", "list", "run").code == 0


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_checkpoint(regard, run, damage):
    """The one before it is used, and the user is told; `verify` finds it and exits 4."""
    older = json.loads(regard("evaluate", "run", "--limit", "4", "--json").out)
    damage(run / "checkpoints/step-00000004")
    answer = regard("checkpoint", "verify", "run")
    assert answer.code == 4
    assert "step-00000004" in answer.out
    assert "damaged: " in answer.out
    assert "sound" in answer.out
    answer = regard("evaluate", "run", "--limit", "4", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["nats_per_token"] != older["nats_per_token"]
    assert package.load(run).step == 2
    assert regard("train", "--resume", "run").code == 0
    assert package.load(run).step == 4


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda run: (run / "config.toml").write_text("[model"), 2, "config.toml is not TOML"),
        (lambda run: (run / "tokenizer.json").write_text("{"), 4, "tokenizer.json is damaged"),
        (lambda run: (run / "tokenizer.json").unlink(), 4, "tokenizer.json is missing"),
        (
            lambda run: (run / "config.toml").write_text(
                (run / "config.toml").read_text().replace("dim = 16", "dim = 32")
            ),
            4,
            "config.toml was edited since the run began",
        ),
    ],
)
def test_a_damaged_run(regard, run, change, code, message):
    change(run)
    answer = regard("generate", "run", "a")
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err
