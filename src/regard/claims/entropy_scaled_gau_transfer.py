"""Gated attention units at lengths that they were not trained on, by what they make of their logits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.benchmark.fitting import averages, train
from regard.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard.claims._letters import LETTERS, samples, text
from regard.claims._plateau import FINISHED, change
from regard.core import generator
from regard.models import Encoder, EncoderConfig, MaskedLanguageModel

HIDDEN = 0.15
"""share of the letters that are predicted"""
LEARNED = 0.5
"""bits below the frequencies of letters, for a model that reads its context at all"""


@dataclass(frozen=True)
class EntropyScaledGauTransfer(Claim):
    """Encoders of gated units that differ in their normaliser, trained at one length and tried at others."""

    about = About(
        title="Gated units with an entropy-scaled softmax work at other lengths",
        says="A gated attention unit with a softmax whose logits grow with log n works at lengths that it was not "
        "trained on better than the published unit, with relu^2 divided by the number of keys.",
        source="Su et al. 2022 (GAU-alpha), technical report; J. Su 2022, on softmax in gated attention units",
        control="At the length of the training an entropy-scaled softmax is softmax: the same weights give the same. A "
        "unit can transfer: with a window of 8 it sees as many keys at every length, and loses nothing. Every model "
        "reads its context, since one that does not has nothing to lose: half a bit below the frequencies of the "
        "letters at least. Every training is over.",
        measures="Bits per hidden letter of held-out addresses, encoders of two gated units with pre-norm and rotary "
        "positions, all of the same sizes, trained on the others at one length: growth is what is lost at another "
        "length, over the length of the training.",
    )
    controls = (
        Control(value="base", title="trained length: scaled - softmax, same weights", expected=0.0, tolerance=1e-3),
        Control(value="window", title="window of 8: growth at the longest", expected=0.0, tolerance=0.1),
        Control(value="read", title="1 if every model reads its context", expected=1.0, tolerance=0.0, small=False),
        FINISHED,
    )
    findings = (
        Finding(value="longest", title="growth at the longest, relu^2 - scaled softmax", at_least=0.05),
        Finding(value="shortest", title="growth at the shortest, relu^2 - scaled softmax", at_least=0.0),
        Finding(value="scale", title="growth at the longest, softmax - scaled softmax", at_least=0.0, states=False),
        Finding(value="kept", title="growth at the longest, scaled softmax", at_most=0.1, states=False),
    )
    least_seeds = 5
    plots = (
        Plot(name="bits", title="Held-out text", x="length", y="bits per hidden letter", log_x=True),
        Plot(name="loss", title="Training", x="step", y="bits per hidden letter"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "lengths": (8, 16, 32),
        "dim": 16,
        "steps": 20,
        "batch": 4,
        "letters": 4096,
    }

    relu: str = "relu_squared(normaliser=visible)"
    scaled: str = "entropy_scaled(base_length={length})"
    softmax: str = "softmax"
    window: str = "local(window=8)"
    lengths: tuple[int, ...] = (16, 64, 128, 256, 512)
    """the second one is that of the training"""
    dim: int = 64
    steps: int = 800
    batch: int = 16
    letters: int = 16384
    """of held-out text, at every length"""

    def observe(self, seed: int) -> Observation:
        """Train all on the same text, try all at every length."""
        specs = {name: getattr(self, name) for name in ("relu", "scaled", "softmax", "window")}
        bits: dict[str, list[float]] = {}
        losses: dict[str, Curve] = {}
        changes, models = [], {}
        for name, spec in specs.items():
            models[name], means = self.trained(spec, seed)
            bits[name] = self.bits(models[name], seed)
            losses[name] = averages(means)
            changes.append(change(losses[name][1]))
        grown = {name: [value - found[1] for value in found] for name, found in bits.items()}
        most = max(found[1] for found in bits.values())
        values = {
            "longest": grown["relu"][-1] - grown["scaled"][-1],
            "shortest": grown["relu"][0] - grown["scaled"][0],
            "scale": grown["softmax"][-1] - grown["scaled"][-1],
            "kept": grown["scaled"][-1],
            "window": grown["window"][-1],
            "read": float(most <= self.frequencies() - LEARNED),
            "base": self.difference(models["scaled"], seed),
            "unfinished": max(changes),
        }
        curves = {"bits": {name: (self.lengths, found) for name, found in bits.items()}, "loss": losses}
        return Observation(values, curves)

    def model(self, spec: str, seed: int) -> MaskedLanguageModel:
        """Two gated units."""
        config = EncoderConfig(
            vocab_size=LETTERS + 1,
            dim=self.dim,
            layers=2,
            heads=1,
            head_dim=self.dim // 2,
            attention=(spec.format(length=self.lengths[1]),),
            position="rotary",
            block="gated_unit",
            mlp="none",
            bias=True,
            seed=seed,
        )
        return MaskedLanguageModel(Encoder(config))

    def trained(self, spec: str, seed: int) -> tuple[MaskedLanguageModel, list[float]]:
        """A model after its training, and its loss on the way."""
        model, draw = self.model(spec, seed).train(), generator(seed, "train")
        means: list[float] = []

        def loss(step: int) -> Tensor:
            del step
            value = hidden_bits(model, samples("train", self.batch, self.lengths[1] - 1, draw), draw)
            means.append(float(value.detach()))
            return value

        train(model.parameters(), loss, steps=self.steps)
        return model.eval(), means

    @torch.no_grad()
    def bits(self, model: MaskedLanguageModel, seed: int) -> list[float]:
        """On new text, at every length."""
        found = []
        for length in self.lengths:
            draw = generator(seed, "new", length)
            new = samples("valid", self.letters // length, length - 1, draw)
            found.append(float(hidden_bits(model, new, draw)))
        return found

    @torch.no_grad()
    def difference(self, scaled: MaskedLanguageModel, seed: int) -> float:
        """The largest difference of logits to those of softmax with the same weights, at the length of the training."""
        plain = self.model(self.softmax, seed).eval()
        plain.load_state_dict(scaled.state_dict())
        letters = samples("valid", 4, self.lengths[1] - 1, generator(seed, "same"))
        return float((scaled(letters).logits - plain(letters).logits).abs().max())

    @staticmethod
    def frequencies() -> float:
        """Bits of a held-out letter whose frequency in the training text is known, and nothing else."""
        share = torch.bincount(text("train"), minlength=LETTERS).double()
        return float(-(share / share.sum()).log2()[text("valid")].mean())


def hidden_bits(model: MaskedLanguageModel, letters: Tensor, draw: torch.Generator) -> Tensor:
    """Bits of the letters that are hidden, a share of all."""
    hidden = torch.rand(letters.shape, generator=draw) < HIDDEN
    logits = model(torch.where(hidden, LETTERS, letters)).logits
    return cross_entropy(logits[hidden], letters[hidden]) / math.log(2)
