"""Hybrids model local text like softmax.

Claim: Softmax where exactness matters and linear attention elsewhere keeps the quality of softmax as a language model:
by length, by layer, by distance under one normaliser, and by a gate.
Source: The exact-retrieval article, its remedy of hybrids; Arora et al. 2024, Based, section 5
Control: The text has a floor, which softmax reaches. A hybrid can win: with a window over everything it is softmax,
from the same weights on the same text. Every training is over.
Measured: Bits above the true probabilities of Markov text on new text, causal models of two layers with sinusoidal
positions: each mixture and linear attention, less softmax, from the same weights on the same text. The text depends on
the last symbols alone, so that a window alone is enough too.
"""

import math

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._sequences import MarkovText
from evidence.claims._training import decoder, trained
from regard.core.attention import generator
from regard_lab.benchmark.fitting import averages


class HybridLanguageModel(Claim):
    controls = (
        Control("softmax", "softmax: bits above the floor", 0.0, tolerance=0.1, small=False),
        Control("whole", "window over everything - softmax: bits", 0.0, tolerance=0.01),
        FINISHED,
    )
    findings = (
        Finding("by length", "exact while few keys, linear beyond - softmax: bits", at_most=0.05),
        Finding("by layer", "linear, then softmax - softmax: bits", at_most=0.05),
        Finding("by distance", "window and far field - softmax: bits", at_most=0.05),
        Finding("by gate", "window and far field, gated - softmax: bits", at_most=0.05),
        Finding("linear", "linear - softmax: bits", at_least=0.05, states=False),
        Finding("alone", "window alone - softmax: bits", at_most=0.05, states=False),
    )
    least_seeds = 5
    plots = (Plot("bits", "Bits above the floor", "", "bits per symbol"), Plot("loss", "Training", "step", "nats"))

    softmax: str = "softmax"
    linear: str = "linear"
    by_length: str = "length_switch(exact_keys={window})"
    by_layer: str = "linear / softmax"
    by_distance: str = "local_linear(window={window})"
    by_gate: str = "local_linear(window={window}, combine=gate)"
    alone: str = "local(window={window})"
    window: int = setting(8, tiny=3)
    order: int = setting(2, tiny=1)
    symbols: int = setting(3, tiny=3)
    dim: int = setting(48, tiny=16)
    length: int = setting(32, tiny=12)
    steps: int = setting(300, tiny=20)
    batch: int = setting(16, tiny=8)
    texts: int = setting(256, tiny=16)

    def observe(self, seed: int) -> Observation:
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
        model = decoder(
            self,
            self.symbols,
            seed,
            layers=2,
            heads=4,
            attention=tuple(part.strip() for part in spec.split("/")),
            position="sinusoidal",
        )
        draw = generator(seed, "samples")

        def loss() -> Tensor:
            return text.lost(model, text.sample(self.batch, self.length, draw)).mean()

        nats = trained(model, loss, steps=self.steps)
        with torch.no_grad():
            return float((text.lost(model, new) - text.nats(new)).mean()) / math.log(2), nats
