"""One projection for queries and keys against two."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.benchmark.fitting import averages, train
from regard.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard.claims._plateau import FINISHED, change
from regard.core import generator
from regard.models import LanguageModel, ModelConfig


@dataclass(frozen=True)
class SharedQueryKey(Claim):
    """Duplicated sequences, by models whose keys are queries of unit length, and by models with keys of their own."""

    about = About(
        title="A shared projection for queries and keys loses nothing",
        says="Keys that are the queries, divided by their length, with no token attending to itself while there is "
        "another, do not perform worse than a projection of their own.",
        source="Kitaev, Kaiser, Levskaya 2020 (Reformer), sections 2 and 5 (shared-QK)",
        control="With keys of their own two layers duplicate every sequence, and so does one: the task can be learned. "
        "A loss can be seen: a window of four tokens, which does not reach back half a sequence, leaves a guess among "
        "the symbols. A shared projection can win: it duplicates sequences of two symbols. Every training is over.",
        measures="Accuracy on the second half of new sequences w 0 w, w of random symbols, so that only looking back "
        "half a sequence beats a guess; 8,000 symbols are asked of each seed. Full attention with learned positions "
        "after the same training, in one layer and in two: shared less separate projections. The mean loss of the "
        "whole training says who learns later.",
    )
    controls = (
        Control(value="separate 2", title="two layers, separate: accuracy", expected=1.0, tolerance=0.02, small=False),
        Control(value="separate 1", title="one layer, separate: accuracy", expected=1.0, tolerance=0.02, small=False),
        Control(value="window", title="window too short: accuracy x symbols", expected=1.0, tolerance=0.5),
        Control(value="easy", title="two symbols, shared: accuracy", expected=1.0, tolerance=0.02, small=False),
        FINISHED,
    )
    findings = (
        Finding(
            value="lost 2",
            title="two layers: accuracy, shared - separate",
            at_least=-0.02,
            resolution=1 / 8000,
        ),
        Finding(
            value="lost 1",
            title="one layer: accuracy, shared - separate",
            at_least=-0.02,
            resolution=1 / 8000,
        ),
        Finding(
            value="slower 2",
            title="two layers: nats, mean of the training, shared - separate",
            at_most=0.05,
            states=False,
        ),
        Finding(
            value="slower 1",
            title="one layer: nats, mean of the training, shared - separate",
            at_most=0.05,
            states=False,
        ),
    )
    least_seeds = 5
    plots = (
        Plot(name="accuracy", title="Second half", x="", y="share that is right"),
        Plot(name="loss", title="Training", x="step", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {"steps": 20, "dim": 8, "half": 5, "batch": 4}

    shared: str = "lsh(num_buckets=1, rounds=1)"
    """one bucket: full attention"""
    separate: str = "softmax"
    window: str = "local(window=3)"
    half: int = 16
    """symbols of w"""
    symbols: int = 15
    dim: int = 64
    steps: int = 400
    batch: int = 32
    sequences: int = 500

    def observe(self, seed: int) -> Observation:
        """Train both with one layer and with two; the controls."""
        trainings = {
            "separate 1": (self.separate, 1, self.half),
            "shared 1": (self.shared, 1, self.half),
            "separate 2": (self.separate, 2, self.half),
            "shared 2": (self.shared, 2, self.half),
            "window": (self.window, 1, self.half),
            "easy": (self.shared, 1, 2),
        }
        accuracies: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        means: dict[str, float] = {}
        changes: list[float] = []
        for name, (spec, layers, half) in trainings.items():
            accuracies[name], nats = self.trained(spec, layers, half, seed)
            losses[name], means[name] = averages(nats), fmean(nats)
            changes.append(change(nats))
        values = {name: accuracies[name] for name in ("separate 1", "separate 2", "easy")}
        values |= {f"lost {layers}": accuracies[f"shared {layers}"] - values[f"separate {layers}"] for layers in (1, 2)}
        values |= {f"slower {layers}": means[f"shared {layers}"] - means[f"separate {layers}"] for layers in (1, 2)}
        values |= {"window": accuracies["window"] * self.symbols, "unfinished": max(changes)}
        bars: Curve = (list(accuracies), list(accuracies.values()))
        return Observation(values, {"accuracy": {"": bars}, "loss": losses})

    def trained(self, spec: str, layers: int, half: int, seed: int) -> tuple[float, list[float]]:
        """Accuracy of a model on new sequences after training, and its loss on the way."""
        config = ModelConfig(
            vocab_size=self.symbols + 1,
            dim=self.dim,
            layers=layers,
            heads=4,
            attention=(spec,),
            position="learned",
            max_length=2 * half,
            seed=seed,
        )
        model, draw = LanguageModel(config).train(), generator(seed, "samples", half)
        nats: list[float] = []

        def loss(step: int) -> Tensor:
            del step
            tokens = self.sequence(self.batch, half, draw)
            value = cross_entropy(self.second_half(model, tokens).mT, tokens[:, half + 1 :])
            nats.append(float(value.detach()))
            return value

        train(model.parameters(), loss, steps=self.steps)
        model.eval()
        new = self.sequence(self.sequences, half, generator(seed, "new", half))
        with torch.no_grad():
            right = self.second_half(model, new).argmax(-1) == new[:, half + 1 :]
        return float(right.double().mean()), nats

    def sequence(self, count: int, half: int, draw: torch.Generator) -> Tensor:
        """w 0 w, (count, 2 half + 1)."""
        word = torch.randint(1, self.symbols + 1, (count, half), generator=draw)
        return torch.cat([word, torch.zeros_like(word[:, :1]), word], 1)

    def second_half(self, model: LanguageModel, tokens: Tensor) -> Tensor:
        """What a model predicts for every symbol after the 0."""
        return model(tokens[:, :-1]).logits[:, tokens.shape[1] // 2 :]
