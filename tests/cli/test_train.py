"""train: layers of options, files with problems, runs that are never overwritten, and runs that go on."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest


def config_of(run):
    return tomllib.loads((run / "config.toml").read_text())


@pytest.fixture
def short(tiny, text):
    return [*tiny, "--task.corpus", text, "--task.cache", text.parent / "cache", "--steps", "1"]


def test_a_run_holds_what_was_asked_for(regard, tmp_path, short):
    answer = regard("train", *short, "--model.attention", "linear(feature_map=relu)", "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert found["run"] == "runs/001"
    assert 0 < found["evaluation"]["bits_per_byte"] < 20
    run = tmp_path / "runs/001"
    assert config_of(run)["model"]["attention"] == ["linear(feature_map=relu)"]
    assert config_of(run)["training"]["steps"] == 1
    assert {"config.toml", "env.json", "metrics.jsonl", "tokenizer.json", "checkpoints"} <= {
        path.name for path in run.iterdir()
    }
    assert regard("train", *short).out.endswith("Run: runs/002\n")


FILE = """
[model]
dim = 16
layers = 1
heads = 2
[training]
steps = 3
batch_size = 4
warmup = 1
[task]
name = "recall"
vocab_size = 16
length = 16
num_pairs = 2
num_held_out = 4
"""


def test_flags_win_over_the_file_and_the_file_over_the_preset(regard, tmp_path):
    (tmp_path / "a.toml").write_text(FILE)
    words = ["--config", "a.toml", "--preset", "llama", "--steps", "1", "--task.num-pairs", "3", "--model.kv-heads", 1]
    assert regard("train", *words, "--model.mlp-dim", 8, "--model.max-length", 32, "--out", "r").code == 0
    found = config_of(tmp_path / "r")
    assert found["training"]["steps"] == 1
    assert (found["task"]["num_pairs"], found["task"]["length"]) == (3, 16)
    assert (found["model"]["kv_heads"], found["model"]["dim"]) == (1, 16)
    assert (found["model"]["mlp"], found["model"]["norm_kind"]) == ("swiglu", "rms")


def test_what_a_preset_derives_follows_what_is_asked_for(regard, tmp_path, monkeypatch):
    """The MLP of llama is 8/3 of the width, rounded up to a multiple of 256: 11,008 of 4,096, 256 of 96."""
    from regard_lab import training

    seen = []
    monkeypatch.setattr(training, "train", lambda config, out, **given: seen.append(config.model) or exit(9))
    (tmp_path / "a.toml").write_text("[model]\ndim = 96\nlayers = 1\n[training]\nsteps = 1\n")
    flags = ["--model.dim=96", "--model.layers", 1, "--model.kv_heads", "None"]
    for words in (flags, ["--config", "a.toml"], ["--config", "a.toml", "--model.dim", 480]):
        assert regard("train", "--preset", "llama", *words).code == 9
    assert [(model.dim, model.mlp_dim, model.mlp) for model in seen] == [
        (96, 256, "swiglu"),
        (96, 256, "swiglu"),
        (480, 1280, "swiglu"),
    ]
    assert "model.dimm: unknown key" in regard("train", "--preset", "llama", "--config", bad(tmp_path)).err


def bad(folder):
    (folder / "bad.toml").write_text("[model]\ndimm = 3\nlayers = 'two'\n")
    return "bad.toml"


def test_a_model_that_no_memory_holds_is_refused_before_it_is_built(regard, tmp_path):
    answer = regard("train", "--preset", "llama", "--model.layers", "32000", "--device", "cpu")
    assert (answer.code, answer.out) == (6, "")
    assert "GiB for weights, gradients and optimizer, and this machine has" in answer.err
    assert "--model.layers (now 32000)" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_no_memory_holds_is_refused_before_it_begins(regard, tmp_path):
    step = ("train", "--task.length", "100000", "--batch-size", "100000", "--device", "cpu")
    answer = regard(*step)
    assert (answer.code, answer.out) == (6, "")
    assert "a step of 100000 examples of 100000 positions keeps" in answer.err
    assert "raise --accumulation (now 1) or lower --batch-size (now 100000)" in answer.err
    assert "a step of 50000 examples" in regard(*step, "--accumulation", "2").err
    assert list(tmp_path.iterdir()) == []


def test_the_file_chooses_the_task_and_a_flag_another_one(regard, tmp_path, text):
    (tmp_path / "a.toml").write_text(FILE)
    assert regard("train", "--config", "a.toml", "--out", "r", "--steps", "1").code == 0
    assert config_of(tmp_path / "r")["task"]["name"] == "recall"
    assert "--task.alpha" in regard("train", "--config", "a.toml", "--help").out
    words = ["--task=copy", "--task.length", "16", "--task.num-held-out", "4", "--task.vocab-size", "8"]
    assert regard("train", "--config", "a.toml", "--out", "s", "--steps", "1", *words).code == 0
    assert config_of(tmp_path / "s")["task"]["name"] == "copy"


def test_resume_takes_nothing_beside_it(regard, run):
    for words in (
        ["--batch-size", "9"],
        ["--task", "recall"],
        ["--preset", "gpt"],
        ["--model.dim=8"],
        ["--config", "a"],
    ):
        answer = regard("train", "--resume", "run", *words)
        assert answer.code == 2
        assert f"so {words[0].partition(' ')[0]}" in answer.err
        assert "would change nothing" in answer.err
    assert regard("train", "--resume", "run", "--json").code == 0


def test_a_finished_run_is_extended_by_name(regard, run):
    answer = regard("train", "--resume", "run", "--steps", "6", "--learning-rate", "0.0005")
    assert answer.code == 0, answer.err
    assert "steps = 6\n" in (run / "config.toml").read_text()
    assert "learning_rate = 0.0005\n" in (run / "config.toml").read_text()
    steps = [line["step"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    assert max(steps) == 6
    assert steps == sorted(steps)
    assert "Try it: regard generate run " in answer.out
    assert regard("train", "--resume", "run").code == 0  # and was not edited
    answer = regard("train", "--resume", "run", "--steps", "5")
    assert answer.code == 2
    assert "run has 6 steps; it can be given more of them, not 5" in answer.err


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_that_diverged_is_tried_again_as_the_message_says(regard, tmp_path, short, saved):
    """Also where the newest checkpoint holds weights that had diverged before the loss was not finite."""
    every = ["--checkpoint-every", "1" if saved else "1000", "--evaluate-every", "1000"]
    answer = regard("train", *short[:-1], "6", "--learning-rate", "1e30", "--clip", "0", *every, "--out", "r")
    assert answer.code == 5
    step = int(re.search(r"training step (\d+): the \w+ is not finite", answer.err)[1])
    assert step > 0
    commands = re.findall(r"regard (train --resume r --learning-rate \S+)", answer.err)
    assert len(commands) == 1
    assert ("try again from the start" in answer.err) is not saved
    lower = [*commands[0].split()[:-1], "0.001"]
    if saved:
        again = regard(*lower)
        assert again.code == 5
        while again.code:
            (spoilt,) = re.findall(r"remove (\S+), and the same command", again.err)
            shutil.rmtree(tmp_path / spoilt)
            again = regard(*lower)
    else:
        again = regard(*lower)
    assert again.code == 0, again.err
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "evaluate"] == [6]
    assert regard("evaluate", "r").code == 0


def test_a_device_that_is_absent_leaves_nothing_behind(regard, tmp_path, short):
    import torch

    absent = "mps" if torch.cuda.is_available() else "cuda"
    answer = regard("train", *short, "--device", absent)
    assert answer.code == 2
    assert f"device {absent} is not available here" in answer.err
    assert not (tmp_path / "runs/001").exists()


def test_recall_as_published_is_an_example_that_runs(regard, tmp_path, monkeypatch):
    """Arora et al. 2023: vocabulary, length, pairs, two layers, one head, no MLP, 64 epochs; and two steps of it."""
    published = (Path(__file__).parents[2] / "examples" / "mqar.toml").read_text(encoding="utf-8")
    (tmp_path / "mqar.toml").write_text(published)
    small = ["--steps", 2, "--batch-size", 2, "--model.dim", 8, "--task.num-held-out", 4]
    assert regard("train", "--config", "mqar.toml", *small, "--out", "r").code == 0
    found = config_of(tmp_path / "r")
    task, model, training = found["task"], found["model"], tomllib.loads(published)["training"]
    assert (task["vocab_size"], task["length"], task["num_pairs"], task["filler"]) == (8192, 512, 64, "zeros")
    assert (model["layers"], model["heads"], model["mlp"]) == (2, 1, "none")
    assert training["steps"] * training["batch_size"] == 64 * task["num_examples"]


@pytest.mark.parametrize("spec", ["localhwindow=5)", "linformer", "local(window=-3)"])
def test_a_setting_of_a_file_that_cannot_be_is_told_with_the_file(regard, tmp_path, text, spec):
    (tmp_path / "mine.toml").write_text(f'[model]\nattention = ["{spec}"]\n')
    words = ("--task.corpus", text, "--task.cache", "cache", "--out", "out")
    answer = regard("train", "--config", "mine.toml", *words)
    assert (answer.code, answer.out) == (2, "")
    assert spec.partition("(")[0] in answer.err
    assert "mine.toml" in answer.err
    assert "mine.toml" not in regard("train", "--model.attention", spec, *words).err


def test_a_terminal_that_is_closed_leaves_a_checkpoint(regard, tmp_path, short, environment):
    """The shell and the system send SIGHUP, and nothing can be shown any more."""
    words = [*map(str, short), "--out", "run", "--checkpoint-every", "100000", "--log-every", "1"]
    words[words.index("--steps") + 1] = "100000"
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-m", "regard.cli.main", "train", *words], environment)
    os.set_blocking(terminal, False)
    log = tmp_path / "run/metrics.jsonl"
    while not log.exists() or len(log.read_text().splitlines()) < 3:
        with suppress(BlockingIOError):
            os.read(terminal, 1 << 16)
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
    os.close(terminal)  # of which the system tells the process
    os.kill(process, signal.SIGHUP)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1
    assert regard("checkpoint", "verify", "run").code == 0


def test_nohup_goes_on_when_a_terminal_is_closed(tmp_path, short, environment):
    words = ["nohup", sys.executable, "-m", "regard.cli.main", "train", *map(str, short), "--out", "run"]
    words[words.index("--steps") + 1] = "30"
    process = subprocess.Popen(words, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
