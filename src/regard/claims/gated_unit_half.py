"""Gated attention units against attention and MLP, with as many weights and with half of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.benchmark.fitting import averages
from regard.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard.claims._letters import LETTERS, learned, pair_bits, samples
from regard.claims._plateau import FINISHED, change
from regard.core import generator
from regard.models import LanguageModel, ModelConfig


@dataclass(frozen=True)
class GatedUnitHalf(Claim):
    """Small language models of letters: blocks of attention and MLP, two units for each of them, and one."""

    about = About(
        title="One gated unit does the work of attention and MLP",
        says="A gated attention unit, with one head and about half of the weights, stands for a whole layer of "
        "multi-head attention and MLP: two of them, of as many weights as the layer, are at least as good.",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 2",
        control="Units can win what there is to win: where they see one letter alone they learn the table of pairs of "
        "letters, which is counted over the training text. The models have the weights that they are said to have. "
        "Every training is over.",
        measures="Bits per letter on held-out addresses, causal models trained on the others for as many steps on the "
        "same samples, with rotary positions: two blocks with four heads, four units with one head of half the width "
        "and squared ReLU over the number of visible keys, and two such units. A thousandth of the published training.",
    )
    controls = (
        Control(value="pairs", title="units of one letter: bits - table", expected=0.0, tolerance=0.1, small=False),
        Control(value="same", title="weights, twice the units / blocks", expected=1.0, tolerance=0.02),
        Control(value="half", title="weights, as many units / blocks", expected=0.5, tolerance=0.03),
        FINISHED,
    )
    findings = (
        Finding(value="two", title="bits per letter, two units for a block - blocks", at_most=0.02),
        Finding(value="one", title="bits per letter, one unit for a block - blocks", at_most=0.02),
    )
    least_seeds = 5
    plots = (
        Plot(name="bits", title="Held-out text", x="", y="bits per letter"),
        Plot(name="loss", title="Training", x="step", y="bits per letter"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "dim": 32,
        "mlp_dim": 152,
        "length": 16,
        "steps": 20,
        "batch": 4,
        "samples": 20,
    }

    attention: str = "softmax"
    unit: str = "relu_squared(normaliser=visible)"
    blind: str = "local(window=0)"
    blocks: int = 2
    dim: int = 64
    mlp_dim: int = 296
    """of the blocks: so that they have as many weights as twice as many units"""
    length: int = 64
    steps: int = 400
    learning_rate: float = 6e-3
    batch: int = 16
    samples: int = 256
    """of held-out text"""

    def observe(self, seed: int) -> Observation:
        """Train all."""
        new = samples("valid", self.samples, self.length, generator(seed, "valid"))
        table = pair_bits()
        configs = {
            "blocks": self.of_blocks(seed),
            "two": self.of_units(self.unit, 2 * self.blocks, seed),
            "one": self.of_units(self.unit, self.blocks, seed),
            "blind": self.of_units(self.blind, self.blocks, seed),
        }
        bits: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        for name, config in configs.items():
            bits[name], means = learned(
                config, new, steps=self.steps, batch=self.batch, learning_rate=self.learning_rate
            )
            losses[name] = averages(means)
        weights = {name: LanguageModel(config).parameter_count() for name, config in configs.items()}
        values = {
            "two": bits["two"] - bits["blocks"],
            "one": bits["one"] - bits["blocks"],
            "pairs": bits["blind"] - float(table[new[:, :-1], new[:, 1:]].mean()),
            "same": weights["two"] / weights["blocks"],
            "half": weights["one"] / weights["blocks"],
            "unfinished": max(change(means) for _, means in losses.values()),
        }
        labels = {"blocks": "attention and MLP", "two": "two units for each", "one": "one unit for each"}
        bars = {"": (list(labels.values()), [bits[name] for name in labels])}
        return Observation(values, {"bits": bars, "loss": losses})

    def of_blocks(self, seed: int) -> ModelConfig:
        """Attention and MLP."""
        return ModelConfig(
            vocab_size=LETTERS,
            dim=self.dim,
            layers=self.blocks,
            heads=4,
            attention=(self.attention,),
            mlp_dim=self.mlp_dim,
            max_length=self.length,
            seed=seed,
        )

    def of_units(self, spec: str, layers: int, seed: int) -> ModelConfig:
        """Gated units."""
        return ModelConfig(
            vocab_size=LETTERS,
            dim=self.dim,
            layers=layers,
            heads=1,
            head_dim=self.dim // 2,
            attention=(spec,),
            block="gated_unit",
            mlp="none",
            bias=True,
            max_length=self.length,
            seed=seed,
        )
