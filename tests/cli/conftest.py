"""Commands, called in this process; and one tiny trained run for those that need one."""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.cli.main import main
from regard.files import consent
from regard.integrations import pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.models import LanguageModel, presets

SOURCE = Path(__file__).parents[2] / "src"
TINY = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--task.length", "32", "--batch-size", "4"]
TINY += ["--warmup", "1", "--threads", "1"]
WORDS = ["[unk]", *"abcdefghij"]


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch):
    """As in a new process: other tests import `tests.mutants` by its path, and all tests would be a user's code."""
    monkeypatch.setattr(consent, "_modules", {})


@pytest.fixture
def regard(capsys, monkeypatch, tmp_path) -> Callable[..., Answer]:
    """Run one command in an empty folder; whatever it is, it must not show a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*words: object, stdin: bytes | None = None) -> Answer:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        # A docstring that `info` shows may hold one too, but not at the margin.
        assert not re.search("^Traceback", captured.out + captured.err, re.MULTILINE), captured.err
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options of a tiny training."""
    return TINY


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A small text file."""
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(400)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, text) -> Path:
    """A run with two checkpoints. Never to be changed: `run` is a copy."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", *TINY, "--task.corpus", str(text), "--steps", "4", "--checkpoint-every", "2", "--out", str(path)]
    assert main([*words, "--log-every", "2", "--task.cache", str(path.parent / "cache")]) == 0
    return path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the trained run."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory) -> Path:
    """A run of a task without text."""
    path = tmp_path_factory.mktemp("recall") / "run"
    words = ["train", "--task", "recall", *TINY, "--steps", "1", "--task.num-pairs", "2", "--task.vocab-size", "16"]
    assert main([*words, "--task.num-held-out", "4", "--out", str(path)]) == 0
    return path


def letters() -> PretrainedTokenizer:
    """Words are letters."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    return PretrainedTokenizer(tokenizer)


def published(folder: Path, seed: int | None = None, dim: int = 16) -> str:
    """A small decoder of 24 learned positions; with a seed its weights tell contexts apart."""
    shape = {"dim": dim, "heads": 4, "layers": 2, "vocab_size": len(WORDS), "max_length": 24, "dropout": 0.0}
    model = LanguageModel(presets.build("gpt", **shape))
    if seed is not None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    pretrained.export(model, folder, tokenizer=letters())
    return str(folder)


@pytest.fixture
def network(tmp_path) -> str:
    """A folder with a small decoder, and a text of its words."""
    (tmp_path / "text.txt").write_text("a b c d e f g h i j a c e g i b d f h j\n" * 40)
    return published(tmp_path / "letters")


def images(path: Path, **other: np.ndarray) -> Path:
    """Twelve images of three classes."""
    pictures = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
    arrays = {"train_images": pictures, "train_labels": np.arange(12) % 3}
    arrays |= {"test_images": pictures[:4], "test_labels": np.arange(4) % 3}
    np.savez(path, **{**arrays, **other})
    return path


SHORT = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--batch-size", "4", "--warmup", "1"]
SHORT += ["--threads", "1", "--steps", "2"]


@pytest.fixture(scope="session")
def made(tmp_path_factory, text) -> dict[str, Path]:
    """A run of every kind that is no decoder. Never to be changed."""
    folder = tmp_path_factory.mktemp("made")
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"number {at}\tnúmero {at}\n" for at in range(60)), encoding="utf-8")
    words = {
        "translation": ["--task.corpus", pairs, "--task.tokenizer", "bytes", "--task.length", "24"],
        "masked": ["--task.corpus", text, "--task.length", "32", "--task.cache", folder / "cache"],
        "poems": ["--task.data", "song_ci", "--task.num-classes", "2", "--evaluate-examples", "4"],
        "images": ["--task.data", images(folder / "pictures.npz"), "--task.holdout", "0.3"],
    }
    for name, own in words.items():
        task = name if name in ("translation", "masked") else "classification"
        assert main(["train", "--task", task, *SHORT, *map(str, own), "--out", str(folder / name)]) == 0
    return {name: folder / name for name in words}


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For commands in a process of their own."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
