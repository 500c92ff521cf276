"""A tiny run, and a model and a task that follow the same interfaces as the real ones."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.models import EncoderConfig, EncoderDecoderConfig
from regard.models.config import ModelConfig
from regard_lab.tasks import ClassificationConfig, MaskedConfig, RecallConfig, TranslationConfig
from regard_lab.tasks.base import IGNORE, Example, Split, Task
from regard_lab.training import RunConfig, RunResult, TrainingConfig, train
from regard_lab.training.checkpoint import newest


@pytest.fixture(scope="session")
def small() -> RunConfig:
    """Dropout, so that the random state matters; 12 steps, lines, evaluations and checkpoints out of step."""
    return RunConfig(
        model=ModelConfig(dim=16, heads=2, layers=1, dropout=0.1, vocab_size=16, max_length=16),
        task=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_examples=21, num_held_out=6),
        training=TrainingConfig(
            steps=12,
            batch_size=4,
            accumulation=2,
            warmup=3,
            log_every=5,
            evaluate_every=6,
            checkpoint_every=4,
            threads=1,
        ),
    )


def pictures(path: Path, *, count: int = 40) -> Path:
    """Pictures whose lighter half says the class."""
    draw = np.random.default_rng(0)
    labels = np.arange(count) % 2
    values = draw.integers(0, 90, (count, 8, 8), np.uint8)
    values[labels == 0, :4] += 120
    values[labels == 1, 4:] += 120
    np.savez(path, train_images=values, train_labels=labels, test_images=values[:9], test_labels=labels[:9])
    return path


@pytest.fixture(scope="session")
def kinds(tmp_path_factory) -> dict[str, RunConfig]:
    """A tiny run of every task whose model is no causal decoder; 24 examples, some of them seen twice."""
    folder = tmp_path_factory.mktemp("kinds")
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"number {at}\tnúmero {at}\n" for at in range(23)), encoding="utf-8")
    words = folder / "words.txt"
    words.write_text("".join(f"{at} is followed by {at + 1}\n" for at in range(15)))
    data = pictures(folder / "pictures.npz", count=24)
    tiny = {"dim": 16, "heads": 2, "layers": 1, "dropout": 0.1}
    training = TrainingConfig(
        steps=6, batch_size=4, accumulation=2, warmup=1, evaluate_every=3, checkpoint_every=2, threads=1
    )
    cache = str(folder / "cache")
    translation = TranslationConfig(corpus=str(pairs), tokenizer="bytes", length=20, holdout=0.1)
    masked = MaskedConfig(corpus=str(words), length=16, holdout=0.1, cache=cache)
    images = ClassificationConfig(data=str(data), patch=4, holdout=0.25)
    return {
        "translation": RunConfig(EncoderDecoderConfig(**tiny), translation, training),
        "masked": RunConfig(EncoderConfig(**tiny), masked, training),
        "images": RunConfig(EncoderConfig(**tiny), images, training),
    }


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Callable[[RunConfig], RunResult]:
    """A run of a configuration, trained once. Never to be changed: `finished` is a copy."""
    done: list[tuple[RunConfig, RunResult]] = []

    def run(config: RunConfig) -> RunResult:
        for known, result in done:
            if known == config:
                return result
        done.append((config, train(config, tmp_path_factory.mktemp("trained") / "run")))
        return done[-1][1]

    return run


@pytest.fixture
def finished(trained, tmp_path) -> Callable[..., Path]:
    """A run of a configuration, for a test that changes it."""

    def run(config: RunConfig, name: str = "run") -> Path:
        return Path(shutil.copytree(trained(config).path, tmp_path / name))

    return run


def stop_after(step: int, kind: str = "step") -> Callable[[dict[str, object]], None]:
    """What ends a run when a step, or what else happens with it, is done."""

    def stop(event: dict[str, object]) -> None:
        if (event["kind"], event["step"]) == (kind, step):
            raise RuntimeError("stopped")

    return stop


def require_equal(run: Path, other: Path, *parts: str) -> None:
    """The newest checkpoints hold the same bits."""
    ours, theirs = newest(run / "checkpoints")[0], newest(other / "checkpoints")[0]
    assert ours is not None
    assert theirs is not None
    assert ours.progress.step == theirs.progress.step
    for part in parts or ("model", "optimizer", "rng"):
        own, wanted = getattr(ours, part), getattr(theirs, part)
        assert own.keys() == wanted.keys()
        assert own, part
        assert all(torch.equal(own[name], wanted[name]) for name in wanted), part


class Lookup(nn.Module):
    """Logits from a table, through a matrix with a bias, plus a loss that it weighs itself."""

    loss_weights: dict[str, float]

    def __init__(self, vocab_size: int, *, seed: int = 0, dim: int = 6) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(vocab_size, dim)
        self.norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, vocab_size)
        self.loss_weights = {"size": 0.3}
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=draw)

    def forward(self, tokens: Tensor, *, key_mask: Tensor | None = None) -> SimpleNamespace:
        hidden = self.norm(self.embedding(tokens))
        logits = self.output(hidden)
        if not self.training:
            return SimpleNamespace(logits=logits, losses={})
        self.calls += 1
        kept = hidden if key_mask is None else hidden[key_mask]
        return SimpleNamespace(logits=logits, losses={"size": kept.square().mean()})


@dataclass
class Fixed:
    examples: list[Example]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


class Pairs(Task):
    """Random tokens and targets; some targets do not count, and lengths may differ."""

    name = "pairs"
    metric = "accuracy"

    def __init__(self, *, lengths: tuple[int, ...] = (9,), count: int = 10, vocab_size: int = 11) -> None:
        self.vocab_size, self.length, self.fingerprint = vocab_size, max(lengths), "pairs"
        draw = np.random.default_rng(3)
        self._examples = []
        for index in range(count):
            length = lengths[index % len(lengths)]
            targets = draw.integers(0, vocab_size, length)
            targets[draw.random(length) < 0.2 + 0.6 * (index % 2)] = IGNORE
            targets[0] = index % vocab_size
            self._examples.append(Example(draw.integers(0, vocab_size, length), targets, index // 3, 2 * length))

    def examples(self, split: Split) -> Fixed:
        return Fixed(self._examples)


@pytest.fixture
def lookup() -> Callable[..., Lookup]:
    return Lookup


@pytest.fixture
def pairs() -> Callable[..., Pairs]:
    return Pairs
