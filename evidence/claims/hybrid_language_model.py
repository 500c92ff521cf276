"""Mixtures of exact and linear attention as language models of local text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from evidence.claims._plateau import FINISHED, change
from evidence.claims._sequences import MarkovText
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.fitting import averages, train


@dataclass(frozen=True)
class HybridLanguageModel(Claim):
    """Softmax, linear attention and four mixtures of them, on text whose next symbol depends on the last ones."""

    about = About(
        title="Hybrids model local text like softmax",
        says="Softmax where exactness matters and linear attention elsewhere keeps the quality of softmax as a "
        "language model: by length, by layer, by distance under one normaliser, and by a gate.",
        source="The exact-retrieval article, its remedy of hybrids; Arora et al. 2024, Based, section 5",
        control="The text has a floor, which softmax reaches. A hybrid can win: with a window over everything it is "
        "softmax, from the same weights on the same text. Every training is over.",
        measures="Bits above the true probabilities of Markov text on new text, causal models of two layers with "
        "sinusoidal positions: each mixture and linear attention, less softmax, from the same weights on the same "
        "text. The text depends on the last symbols alone, so that a window alone is enough too.",
    )
    controls = (
        Control(value="softmax", title="softmax: bits above the floor", expected=0.0, tolerance=0.1, small=False),
        Control(value="whole", title="window over everything - softmax: bits", expected=0.0, tolerance=0.01),
        FINISHED,
    )
    findings = (
        Finding(value="by length", title="exact while few keys, linear beyond - softmax: bits", at_most=0.05),
        Finding(value="by layer", title="linear, then softmax - softmax: bits", at_most=0.05),
        Finding(value="by distance", title="window and far field - softmax: bits", at_most=0.05),
        Finding(value="by gate", title="window and far field, gated - softmax: bits", at_most=0.05),
        Finding(value="linear", title="linear - softmax: bits", at_least=0.05, states=False),
        Finding(value="alone", title="window alone - softmax: bits", at_most=0.05, states=False),
    )
    least_seeds = 5
    plots = (
        Plot(name="bits", title="Bits above the floor", x="", y="bits per symbol"),
        Plot(name="loss", title="Training", x="step", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "steps": 20,
        "dim": 16,
        "order": 1,
        "symbols": 3,
        "length": 12,
        "batch": 8,
        "texts": 16,
        "window": 3,
    }

    softmax: str = "softmax"
    linear: str = "linear"
    by_length: str = "length_switch(exact_keys={window})"
    by_layer: str = "linear / softmax"
    by_distance: str = "local_linear(window={window})"
    by_gate: str = "local_linear(window={window}, combine=gate)"
    alone: str = "local(window={window})"
    window: int = 8
    order: int = 2
    symbols: int = 3
    dim: int = 48
    length: int = 32
    steps: int = 300
    batch: int = 16
    texts: int = 256

    def observe(self, seed: int) -> Observation:
        """Train all on the same text, try all on the same new text."""
        text = MarkovText(self.order, self.symbols, draw=generator(seed, "text"))
        new = text.sample(self.texts, self.length, generator(seed, "new"))
        specs = {
            "softmax": self.softmax,
            "linear": self.linear,
            "by length": self.by_length.format(window=self.window),
            "by layer": self.by_layer,
            "by distance": self.by_distance.format(window=self.window),
            "by gate": self.by_gate.format(window=self.window),
            "alone": self.alone.format(window=self.window),
            "whole": self.by_distance.format(window=self.length),
        }
        bits: dict[str, float] = {}
        changes: list[float] = []
        losses: dict[str, Curve] = {}
        for name, spec in specs.items():
            bits[name], nats = self.above(spec, text, new, seed)
            changes.append(change(nats))
            losses[name] = averages(nats)
        values = {name: bits[name] - bits["softmax"] for name in bits} | {"softmax": bits["softmax"]}
        curves = {"bits": {"": (list(bits), list(bits.values()))}, "loss": losses}
        return Observation(values | {"unfinished": max(changes)}, curves)

    def above(self, spec: str, text: MarkovText, new: Tensor, seed: int) -> tuple[float, list[float]]:
        """Bits above the floor of a trained model, and its loss on the way."""
        config = ModelConfig(
            vocab_size=self.symbols,
            dim=self.dim,
            layers=2,
            heads=4,
            attention=tuple(part.strip() for part in spec.split("/")),
            position="sinusoidal",
            seed=seed,
        )
        model, draw = LanguageModel(config).train(), generator(seed, "samples")
        nats: list[float] = []

        def loss(step: int) -> Tensor:
            del step
            value = self.nats(model, text.sample(self.batch, self.length, draw)).mean()
            nats.append(float(value.detach()))
            return value

        train(model.parameters(), loss, steps=self.steps)
        model.eval()
        with torch.no_grad():
            return float((self.nats(model, new) - text.nats(new)).mean()) / math.log(2), nats

    def nats(self, model: LanguageModel, symbols: Tensor) -> Tensor:
        """-log p of every symbol that has a whole context."""
        logits = model(symbols[:, :-1]).logits[:, self.order - 1 :]
        return cross_entropy(logits.mT, symbols[:, self.order :], reduction="none")
