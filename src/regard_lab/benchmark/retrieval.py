"""Exact recall by trained models: every causal mechanism in the same two layers, against the bytes that it keeps."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard import catalog
from regard.core.errors import ConfigError
from regard.models import LanguageModel, ModelConfig
from regard.specs import Spec, split
from regard_lab.benchmark.fitting import averages, train
from regard_lab.benchmark.recorded import recorded
from regard_lab.tasks import RecallConfig
from regard_lab.tasks.base import IGNORE, Split
from regard_lab.tasks.recall import RecallTask

FORMAT = "regard retrieval 1"
REMEDIES = (
    "linear(feature_map=relu)",
    "linear(feature_map=taylor)",
    "linear(feature_map=identity, normalise=False)",
    "linear(post=softmax)",
    "linear / softmax",
    "local_linear(window=8)",
    "shortlist(num_keys=4)",
    "quantized(bits=2)",
)
"""mechanisms that the exact-retrieval article proposes against the losses of linear attention, beside the catalog"""
CONTROLS = ("softmax", "uniform")
"""a mechanism that recalls everything, and one that cannot tell one key from another"""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RetrievalConfig:
    """The mechanisms to train, and the recall that they are trained on.

    Args:
        specs: mechanisms; `a / b` alternates by layer. None: `everything()`.
        pairs: to remember, one training for each.
        vocab_size, length: of the task, MQAR with zeros between the questions.
        dim: width of the two layers, which have one head, no MLP and no positions, behind a causal convolution of
            width 2 that puts a key beside its value: for all of them, else the time goes into learning that.
        steps, batch_size: of a training.
        rates: peak learning rates; the one with the best validation accuracy is reported, on other sequences.
        seeds: trainings of each.
        sequences: how many are asked, of validation and of the test.

    Raises:
        ConfigError: numbers that are too small, or a task that there is not.
    """

    specs: tuple[str, ...] | None = None
    pairs: tuple[int, ...] = (8,)
    vocab_size: int = 64
    length: int = 64
    dim: int = 32
    steps: int = 300
    batch_size: int = 32
    rates: tuple[float, ...] = (1e-2,)
    seeds: tuple[int, ...] = (0,)
    sequences: int = 250

    def __post_init__(self) -> None:
        problems = [f"{name} must not be empty" for name in ("pairs", "rates", "seeds") if not getattr(self, name)]
        problems += [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in ("dim", "steps", "batch_size", "sequences")
            if getattr(self, name) < 1
        ]
        problems += [f"rates must be positive, got {rate}" for rate in self.rates if not rate > 0]
        if problems:
            raise ConfigError("\n".join(problems))
        for pairs in self.pairs:
            self.task(pairs)

    def task(self, pairs: int) -> RecallConfig:
        """MQAR with so many pairs."""
        return RecallConfig(
            vocab_size=self.vocab_size,
            length=self.length,
            num_pairs=pairs,
            filler="zeros",
            num_examples=self.steps * self.batch_size,
            num_held_out=self.sequences,
        )

    def model(self, spec: str, seed: int) -> ModelConfig:
        """The two layers."""
        parts = tuple(split(spec, "/"))
        if len(parts) > 2:
            raise ConfigError(f"{spec!r} names {len(parts)} layers, and these models have 2")
        return ModelConfig(
            vocab_size=self.vocab_size,
            dim=self.dim,
            layers=2,
            heads=1,
            attention=parts,
            position="none",
            mlp="none",
            short_convolution=2,
            max_length=self.length,
            seed=seed,
        )


@dataclass(frozen=True)
class Trained:
    """A model, its accuracy on the validation and the test sequences, and its loss on the way."""

    model: LanguageModel
    valid: float
    test: float
    loss: list[float]


def everything() -> tuple[str, ...]:
    """Every causal mechanism of the catalog with its first sample of options, then `REMEDIES`.

    Sample options are small, so that a window or a bucket is shorter than the sequences here.

    Example:
        >>> "softmax" in everything(), "linformer" in everything()
        (True, False)
    """
    named = [str(Spec(name, catalog.resolve(name)[0].samples[0])) for name in catalog.names(supports=("causal",))]
    return tuple(dict.fromkeys((*named, *REMEDIES)))


def train_recall(
    config: ModelConfig,
    task: RecallConfig,
    *,
    seed: int = 0,
    steps: int = 300,
    batch_size: int = 32,
    rate: float = 1e-2,
) -> Trained:
    """Train a causal model on recall, auxiliary losses included, and ask it new sequences.

    Args:
        config: the model.
        task: the sequences.
        seed: of the sequences.
        steps, batch_size: of the training; no sequence is seen twice while there are enough.
        rate: peak learning rate.

    Example:
        >>> small = ModelConfig(vocab_size=8, dim=8, heads=1, mlp="none", max_length=8)
        >>> trained = train_recall(small, RecallConfig(vocab_size=8, length=8, num_pairs=2, num_held_out=4), steps=2)
        >>> 0 <= trained.test <= 1
        True
    """
    source = RecallTask(task, seed=seed)
    model = LanguageModel(config).train()
    means: list[float] = []

    def loss(step: int) -> Tensor:
        start = step * batch_size
        tokens, answers = sequences(
            source, "train", [at % task.num_examples for at in range(start, start + batch_size)]
        )
        output = model(tokens)
        value = cross_entropy(output.logits.mT, answers, ignore_index=IGNORE)
        means.append(float(value.detach()))
        return value + sum(
            (model.loss_weights[name] * extra for name, extra in output.losses.items()), value.new_zeros(())
        )

    train(model.parameters(), loss, steps=steps, learning_rate=rate)
    model.eval()
    _, curve = averages(means)
    return Trained(model, accuracy(model, source, "valid"), accuracy(model, source, "test"), curve)


@torch.no_grad()
def accuracy(model: LanguageModel, task: RecallTask, split: Split) -> float:
    """The share of questions that are answered right."""
    tokens, answers = sequences(task, split, range(len(task.examples(split))))
    asked = answers != IGNORE
    return float((model(tokens).logits.argmax(-1) == answers)[asked].double().mean())


def sequences(
    task: RecallTask, split: Split, ids: Sequence[int]
) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Inputs and targets of these examples."""
    chosen = [task.examples(split)[at] for at in ids]
    inputs, targets = (np.stack([getattr(one, name) for one in chosen]) for name in ("inputs", "targets"))
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def state_bytes(model: LanguageModel, length: int) -> int | None:
    """Bytes that all layers keep of one sequence of this length in float32; None where one has no state."""
    if not model.streams:
        return None
    return sum(mechanism.state_nbytes(1, length, torch.float32) for mechanism in model.mechanisms)


def measure(config: RetrievalConfig, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Train and ask every mechanism; two controls beside them.

    Softmax must answer nearly everything (0.95). Equal weights, which cannot tell one key from another, must not do
    better than naming one of the stored values: 1 / pairs, and 0.1 for chance and for a convolution that sees a little.

    Args:
        config: the trainings.
        tell: called with a line for each training.

    Returns:
        Plain data: `rows` (spec, pairs, seed, chosen rate, accuracy, state bytes, weights, loss, seconds), `controls`.

    Raises:
        ConfigError, UnsupportedError: a mechanism that there is not, or that is not causal.
    """
    begun = time.perf_counter()
    specs = everything() if config.specs is None else config.specs
    for spec in specs:  # refused before anything is trained
        LanguageModel(config.model(spec, 0))
    rows = list(_rows(config, dict.fromkeys((*CONTROLS, *specs)), tell))
    controls = [_control(spec, pairs, rows) for spec in CONTROLS for pairs in config.pairs]
    return recorded(FORMAT, replace(config, specs=tuple(specs)), begun, rows=rows, controls=controls)


def _rows(config: RetrievalConfig, specs: Mapping[str, None], tell: Tell) -> Iterator[dict[str, Any]]:
    for pairs in config.pairs:
        for spec in specs:
            for seed in config.seeds:
                begun = time.process_time()
                best, rate = max(
                    ((_trained(config, spec, pairs, seed, rate), rate) for rate in config.rates),
                    key=lambda candidate: (candidate[0].valid, -candidate[1]),
                )
                row = {"spec": spec, "pairs": pairs, "seed": seed, "rate": rate, "accuracy": best.test}
                row |= {"valid": best.valid, "state_bytes": state_bytes(best.model, config.length), "loss": best.loss}
                row |= {"weights": best.model.parameter_count(), "seconds": time.process_time() - begun}
                tell(f"{spec}, {pairs} pairs, seed {seed}: {best.test:.3f}")
                yield row


def _trained(config: RetrievalConfig, spec: str, pairs: int, seed: int, rate: float) -> Trained:
    return train_recall(
        config.model(spec, seed),
        config.task(pairs),
        seed=seed,
        steps=config.steps,
        batch_size=config.batch_size,
        rate=rate,
    )


def _control(spec: str, pairs: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accuracies = [row["accuracy"] for row in rows if (row["spec"], row["pairs"]) == (spec, pairs)]
    exact = spec == CONTROLS[0]
    bound = 0.95 if exact else 1 / pairs + 0.1
    reached = min(accuracies) >= bound if exact else max(accuracies) <= bound
    says = f"at {'least' if exact else 'most'} {bound:.2f}"
    return {"title": f"{spec}, {pairs} pairs: {says}", "values": accuracies, "bound": bound, "reached": reached}
