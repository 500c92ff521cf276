"""Squared ReLU within chunks and linear attention across them, against squared ReLU over everything."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from regard import Attention, Heads, build
from regard.benchmark.fitting import averages
from regard.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard.claims._growth import exponent, operations
from regard.claims._letters import LETTERS, learned, pair_bits, samples
from regard.claims._plateau import FINISHED, change
from regard.core import generator
from regard.models import ModelConfig


@dataclass(frozen=True)
class FlashAgainstGau(Claim):
    """Two small language models of letters that differ in the attention of their gated units alone."""

    about = About(
        title="FLASH has the quality of gated units in linear time",
        says="Mixed chunks, squared ReLU weights within a chunk and linear attention across chunks, give gated units "
        "the quality of quadratic ones at a cost that is linear in the length.",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 3",
        control="With one chunk for the whole sequence FLASH is the quadratic unit: the same values. The quadratic "
        "unit's operations grow as the square of the length. Units that see one letter alone learn the table of pairs "
        "of letters, which is counted over the training text. Every training is over.",
        measures="Bits per letter on held-out addresses, causal models of two gated units with rotary positions, 512 "
        "letters in chunks of 64, trained on the others on the same samples, both with weights divided by the number "
        "of visible keys. Operations of one forward pass of the mechanism by length, counted without a clock.",
    )
    controls = (
        Control(value="whole", title="one chunk: FLASH - quadratic, largest difference", expected=0.0, tolerance=1e-5),
        Control(value="quadratic", title="quadratic: operations ~ length to the power of", expected=2.0, tolerance=0.1),
        Control(value="pairs", title="units of one letter: bits - table", expected=0.0, tolerance=0.1, small=False),
        FINISHED,
    )
    findings = (
        Finding(value="bits", title="bits per letter, FLASH - quadratic", at_most=0.05),
        Finding(value="linear", title="FLASH: operations ~ length to the power of", at_most=1.1),
    )
    least_seeds = 5
    plots = (
        Plot(name="bits", title="Held-out text", x="", y="bits per letter"),
        Plot(name="operations", title="One forward pass", x="length", y="operations", log_x=True, log_y=True),
        Plot(name="loss", title="Training", x="step", y="bits per letter"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "dim": 32,
        "chunk_size": 8,
        "length": 16,
        "steps": 20,
        "batch": 4,
        "samples": 20,
    }

    flash: str = "mixed_chunk(chunk_size={chunk_size}, normaliser=visible)"
    quadratic: str = "relu_squared(normaliser=visible)"
    blind: str = "local(window=0)"
    chunk_size: int = 64
    dim: int = 64
    length: int = 512
    steps: int = 400
    learning_rate: float = 6e-3
    batch: int = 2
    samples: int = 48
    """of held-out text"""

    def observe(self, seed: int) -> Observation:
        """Train all; count both."""
        new = samples("valid", self.samples, self.length, generator(seed, "valid"))
        table = pair_bits()
        chunked = self.flash.format(chunk_size=self.chunk_size)
        bits: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        for name, spec in (("FLASH", chunked), ("quadratic", self.quadratic), ("blind", self.blind)):
            bits[name], means = learned(
                self.config(spec, seed), new, steps=self.steps, batch=self.batch, learning_rate=self.learning_rate
            )
            losses[name] = averages(means)
        lengths = [self.length * times for times in (1, 2, 4, 8)]
        work = {
            name: [float(operations(self.call(spec, length, seed))) for length in lengths]
            for name, spec in (("FLASH", chunked), ("quadratic", self.quadratic))
        }
        one = self.call(self.flash.format(chunk_size=self.length), self.length, seed)().values
        values = {
            "bits": bits["FLASH"] - bits["quadratic"],
            "linear": exponent(lengths, work["FLASH"]),
            "quadratic": exponent(lengths, work["quadratic"]),
            "pairs": bits["blind"] - float(table[new[:, :-1], new[:, 1:]].mean()),
            "whole": float((one - self.call(self.quadratic, self.length, seed)().values).detach().abs().max()),
            "unfinished": max(change(means) for _, means in losses.values()),
        }
        shown = ["FLASH", "quadratic"]
        curves: dict[str, dict[str, Curve]] = {
            "bits": {"": (shown, [bits[name] for name in shown])},
            "operations": {name: (lengths, counts) for name, counts in work.items()},
            "loss": losses,
        }
        return Observation(values, curves)

    def config(self, spec: str, seed: int) -> ModelConfig:
        """Two gated units."""
        return ModelConfig(
            vocab_size=LETTERS,
            dim=self.dim,
            layers=2,
            heads=1,
            head_dim=self.dim // 2,
            attention=(spec,),
            block="gated_unit",
            mlp="none",
            bias=True,
            max_length=self.length,
            seed=seed,
        )

    def call(self, spec: str, length: int, seed: int) -> partial:
        """The mechanism on random vectors of a unit's widths."""
        heads = Heads(count=1, key_dim=self.dim // 2, value_dim=2 * self.dim, causal=True, max_length=length)
        mechanism: Attention = build(spec, heads).eval()
        q, k = torch.randn(2, 1, 1, length, self.dim // 2, generator=generator(seed, "vectors", length))
        v = torch.randn(1, 1, length, 2 * self.dim, generator=generator(seed, "values", length))
        return partial(mechanism, q, k, v)
