"""Beside a model, on a CUDA device: datastores, a memory that is added, some weights alone, caches, exits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard_lab.training import load

SOURCE = Path(__file__).parents[2] / "src"
KNN = ("--knn.lam", 0.4, "--knn.k", 8, "--knn.temperature", 5)
SHAPE = ("--model.dim", 32, "--model.layers", 2, "--model.heads", 2, "--task.length", 32, "--seed", 3)
STEPS = ("--steps", 20, "--warmup", 2, "--evaluate-every", 20, "--checkpoint-every", 10)


def regard(*words: object, device: str | None = "cuda") -> str:
    """What the command says on standard output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "regard", *map(str, words), *(("--device", device) if device else ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, f"{words[0]}: {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A text, a decoder that learnt it on the device, and the datastore of what it saw there."""
    home = tmp_path_factory.mktemp("outside")
    text = "".join(f"{at} and {at * 7 % 13} make {at + at * 7 % 13}\n" for at in range(500))
    (home / "text.txt").write_text(text)
    regard("train", *task(home), *SHAPE, *STEPS, "--out", home / "run")
    regard("knn", "build", home / "text.txt", "--model", home / "run", "--out", home / "store")
    return home


def task(home: Path) -> tuple[object, ...]:
    corpus = ("--task", "text", "--task.corpus", home / "text.txt")
    return (*corpus, "--task.tokenizer", "bytes", "--task.cache", home / "cache")


def loss(home: Path, run: str, *words: object, device: str = "cuda") -> float:
    return json.loads(regard("evaluate", home / run, *words, "--json", device=device))["nats_per_token"]


def test_neighbours(home):
    """The device finds what the CPU finds, in the datastore of either, and 0 of it changes nothing."""
    regard("knn", "build", home / "text.txt", "--model", home / "run", "--out", home / "ours", device="cpu")
    plain = loss(home, "run")
    wanted = loss(home, "run", "--datastore", home / "ours", *KNN, device="cpu")
    assert abs(wanted - plain) > 1e-3
    for store in ("ours", "store"):
        assert loss(home, "run", "--datastore", home / store, *KNN) == pytest.approx(wanted, rel=1e-3)
    assert loss(home, "run", "--datastore", home / "store", "--knn.lam", 0) == plain
    regard("generate", home / "run", "7 and", "--datastore", home / "store", *KNN, "--max-new-tokens", 8)
    regard("knn", "search", home / "store", "7 and 10 make", "--model", home / "run")
    regard("knn", "sweep", home / "store", home / "text.txt", "--model", home / "run", "--limit", 4)


def test_spalm(home):
    """A gate over neighbours is trained on the device as on the CPU."""
    words = ("train", "--preset", "spalm", *task(home), *SHAPE, *STEPS, "--datastore", home / "store")
    words = (*words, "--datastore-model", home / "run", "--model.dropout", 0, "--model.attention-dropout", 0)
    words = (*words, "--model.max-length", 16, "--model.memory", "recent(length=16)")
    for device in ("cuda", "cpu"):
        regard(*words, "--out", home / f"spalm-{device}", device=device)
    ours, theirs = (loss(home, f"spalm-{device}", device="cpu") for device in ("cpu", "cuda"))
    assert theirs == pytest.approx(ours, rel=1e-2)
    assert loss(home, "spalm-cuda") == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(
    "memory", ["recent(length=32)", "compressive(length=16, compressed=8)", "memorizing(pairs=64, top=4)"]
)
def test_a_memory_alone(home, memory):
    """Added to a run and trained alone: as on the CPU, and everything else keeps its bits."""
    name = memory.partition("(")[0]
    learns = "blocks.1" if name == "recent" else "*.memory"
    words = ("train", "--from", home / "run", *task(home)[:-4], *task(home)[-2:], "--task.length", 32, *STEPS)
    words = (*words, "--model.memory", memory, "--model.max-length", 8, "--only", learns)
    for device in ("cuda", "cpu"):
        regard(*words, "--out", home / f"{name}-{device}", device=device)
    ours, theirs = (loss(home, f"{name}-{device}", device="cpu") for device in ("cpu", "cuda"))
    assert theirs == pytest.approx(ours, rel=1e-2)
    assert loss(home, f"{name}-cuda") == pytest.approx(theirs, rel=1e-3)
    before, after = (load(home / run).model.state_dict() for run in ("run", f"{name}-cuda"))
    changed = {key for key, x in before.items() if not torch.equal(x.cpu(), after[key].cpu())}
    assert all(key.startswith("blocks.1.") for key in changed)
    assert bool(changed) == (name == "recent")


def test_caches(home):
    assert "nats" in regard("cache", home / "run", "--budgets", "8", "--json")


def test_exits(home):
    regard("train", "--preset", "calm", *task(home), *SHAPE, *STEPS, "--out", home / "early")
    regard("calibrate", home / "early", "--risk", 0.5, "--passages", 10)
    assert loss(home, "early", "--exits", "calibrated") > 0
