"""The common part of claims on trained recall: the models, their task and their training."""

from evidence.claims._base import Claim, setting
from regard_lab.benchmark.retrieval import RetrievalConfig, Trained, train_recall
from regard_lab.tasks import RecallConfig


class RecallClaim(Claim):
    """Compares models of two layers that differ in their attention alone, trained on the same sequences."""

    vocab_size: int = setting(64, tiny=8)
    length: int = setting(32, tiny=16)
    pairs: int = setting(4, tiny=1)
    dim: int = setting(32, tiny=16)
    steps: int = setting(200, tiny=30)
    sequences: int = setting(250, tiny=50)

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
