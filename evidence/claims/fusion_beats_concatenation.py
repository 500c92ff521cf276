"""Attention fusion against adding and concatenating.

Claim: Modalities combined with weights learned from what they hold serve better than added or concatenated ones,
because what is noise differs from sample to sample.
Source: Yang et al. 2016, section 2.2, for words; surveys of attention carry it over to modalities
Control: A linear layer that is given the reliable modality: it separates the classes, so its accuracy is 1 up to the
noise.
Measured: Accuracy on new samples of a linear layer on the fusion, on the sum and on the concatenation, after the same
training: two modalities, each the pattern of a class plus noise and a flag of its reliability; the unreliable one shows
another class. Adding and concatenating cannot do better than 1/2: no linear layer multiplies a flag with a pattern. An
MLP on the concatenation can; it is shown beside them, with no fewer weights than the fusion, and is not part of the
claim.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from regard.core.attention import generator
from regard.layer import linear
from regard.models.fusion import Fusion
from regard_lab.benchmark.fitting import train


class Shown(NamedTuple):
    """vectors: (batch, 2, dim). labels: of the reliable one. reliable: which of the two it is."""

    vectors: Tensor
    labels: Tensor
    reliable: Tensor


class FusionBeatsConcatenation(Claim):
    controls = (Control("told", "accuracy when told which", 1.0, tolerance=0.02),)
    findings = (
        Finding("over sum", "fusion - sum, accuracy", at_least=0.1, resolution=1 / 4000),
        Finding("over concatenation", "fusion - concatenation, accuracy", at_least=0.1, resolution=1 / 4000),
    )
    plots = (Plot("accuracy", "Accuracy by way of combining", "way", "accuracy"),)

    learned: bool = True
    """False: the fusion's query stays 0, so that it weighs all alike"""
    classes: int = 8
    width: int = 16
    """channels of a pattern; one more is the flag"""
    noise: float = 0.3
    steps: int = setting(600, tiny=80)
    batch: int = 128
    questions: int = 4000

    def observe(self, seed: int) -> Observation:
        patterns = torch.randn(self.classes, self.width, generator=generator(seed, "patterns"))
        new = self.shown(patterns, self.questions, generator(seed, "new"))
        accuracies: dict[str, float] = {}
        for way, (model, weights) in self.ways(seed).items():
            draw = generator(seed, "samples")

            def loss(step: int, model: Callable[[Shown], Tensor] = model, draw: torch.Generator = draw) -> Tensor:
                del step
                batch = self.shown(patterns, self.batch, draw)
                return cross_entropy(model(batch), batch.labels)

            train(weights.parameters(), loss, steps=self.steps, learning_rate=1e-2)
            with torch.no_grad():
                accuracies[way] = float((model(new).argmax(-1) == new.labels).double().mean())
        values = {
            **accuracies,
            "over sum": accuracies["fusion"] - accuracies["sum"],
            "over concatenation": accuracies["fusion"] - accuracies["concatenation"],
        }
        return Observation(values, {"accuracy": {"accuracy": (list(accuracies), list(accuracies.values()))}})

    def shown(self, patterns: Tensor, count: int, draw: torch.Generator) -> Shown:
        labels = torch.randint(0, self.classes, (count,), generator=draw)
        wrong = (labels + torch.randint(1, self.classes, (count,), generator=draw)) % self.classes
        reliable = torch.randint(0, 2, (count,), generator=draw)
        first = reliable == 0
        seen = torch.stack([torch.where(first, labels, wrong), torch.where(first, wrong, labels)], 1)
        vectors = torch.empty(count, 2, self.width + 1)
        vectors[..., :-1] = patterns[seen]
        vectors[..., -1] = torch.stack([first, ~first], 1).float() * 2 - 1
        return Shown(vectors + self.noise * torch.randn(vectors.shape, generator=draw), labels, reliable)

    def ways(self, seed: int) -> dict[str, tuple[Callable[[Shown], Tensor], nn.Module]]:
        """Every way to combine: what it computes, and its weights."""
        dim = self.width + 1
        draw = generator(seed, "outputs")
        told, summed, fused = (linear(dim, self.classes, bias=True, draw=draw) for _ in range(3))
        side_by_side = linear(2 * dim, self.classes, bias=True, draw=draw)
        hidden = 2 * dim
        mlp = nn.Sequential(
            linear(2 * dim, hidden, bias=True, draw=draw), nn.ReLU(), linear(hidden, self.classes, bias=True, draw=draw)
        )
        fusion = Fusion(dim, hidden=hidden, seed=seed)
        if not self.learned:
            nn.init.zeros_(fusion.query).requires_grad_(False)
        return {
            "told": (lambda x: told(x.vectors[torch.arange(len(x.labels)), x.reliable]), told),
            "sum": (lambda x: summed(x.vectors.sum(1)), summed),
            "concatenation": (lambda x: side_by_side(x.vectors.flatten(1)), side_by_side),
            "MLP on the concatenation": (lambda x: mlp(x.vectors.flatten(1)), mlp),
            "fusion": (lambda x: fused(fusion(x.vectors).values), nn.ModuleList([fusion, fused])),
        }
