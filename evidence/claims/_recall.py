"""The common part of claims on trained recall: the models, their task and their training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from evidence.claims._base import Claim
from regard_lab.benchmark.retrieval import RetrievalConfig, Trained, train_recall
from regard_lab.tasks import RecallConfig


@dataclass(frozen=True)
class RecallClaim(Claim):
    """Compares models of two layers that differ in their attention alone, trained on the same sequences."""

    tiny: ClassVar[Mapping[str, object]] = {
        "vocab_size": 8, "length": 16, "pairs": 1, "steps": 30, "dim": 16, "sequences": 50
    }  # fmt: skip

    vocab_size: int = 64
    length: int = 32
    pairs: int = 4
    dim: int = 32
    steps: int = 200
    sequences: int = 250

    @property
    def config(self) -> RetrievalConfig:
        """The shape of every model, and the task."""
        return RetrievalConfig(
            vocab_size=self.vocab_size,
            length=self.length,
            pairs=(self.pairs,),
            dim=self.dim,
            steps=self.steps,
            sequences=self.sequences,
        )

    @property
    def task(self) -> RecallConfig:
        """MQAR with so many pairs."""
        return self.config.task(self.pairs)

    def trained(self, spec: str, seed: int) -> Trained:
        """The model of a specification: the weights and the sequences that it shares with others come from the seed."""
        return train_recall(self.config.model(spec, seed), self.task, seed=seed, steps=self.steps)
