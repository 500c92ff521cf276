"""Gated attention units against attention and MLP, with as many weights and with half of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from evidence.claims._base import About, Claim, Control, Finding, Observation, Plot, Revision
from evidence.claims._letters import LETTERS, pair_bits, samples
from evidence.claims._units import OVER, learned
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig

READ = 0.3
"""bits below the table of pairs of letters, for a model whose attention reads its context"""
SEEN = 0.05
"""bits, of twice the width"""


@dataclass(frozen=True)
class GatedUnitHalf(Claim):
    """Small language models of letters: blocks of attention and MLP, two units for each of them, and one."""

    about = About(
        title="One gated unit does the work of attention and MLP",
        says="A gated attention unit, with one head and about half of the weights, stands for a whole layer of "
        "multi-head attention and MLP: two of them, of as many weights as the layer, are at least as good.",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 2",
        control="Every model uses its attention: without it a model sees one letter, and knows no more than the table "
        "of pairs of letters, which is counted over the training text; each is 0.3 bits below that at least. A better "
        "model is seen to be better: units of twice the width win by 0.05 bits at least. The models have the weights "
        "that they are said to have. Every training is over.",
        measures="Bits per letter on held-out addresses, causal models trained on the others for as many steps on the "
        "same samples, with rotary positions: two blocks with four heads, four units with one head of half the width "
        "and squared ReLU over a constant, and two such units. Far below a thousandth of the published "
        "training.",
    )
    controls = (
        Control(value="read", title="1 if every model uses its attention", expected=1.0, tolerance=0.0, small=False),
        Control(value="seen", title="1 if twice the width wins", expected=1.0, tolerance=0.0, small=False),
        Control(value="same", title="weights, twice the units / blocks", expected=1.0, tolerance=0.02),
        Control(value="half", title="weights, as many units / blocks", expected=0.5, tolerance=0.03),
        OVER,
    )
    findings = (
        Finding(value="two", title="bits per letter, two units for a block - blocks", at_most=0.02),
        Finding(value="one", title="bits per letter, one unit for a block - blocks", at_most=0.02),
    )
    least_seeds = 5
    revised = Revision(
        what="It was judged while losses still fell, by units that started where they hardly learn: they start with "
        "gains of 1 now and are trained to a learning rate of 0, at half the width. The bounds are as they were; a "
        "control of one letter has given way to two that ask whether attention is used and whether a better model is "
        "seen to be better.",
        seen=(0, 1, 2, 3, 4, 900),
    )
    plots = (
        Plot(name="bits", title="Held-out text", x="", y="bits per letter"),
        Plot(name="loss", title="Training", x="step", y="bits per letter"),
    )
    tiny: ClassVar[Mapping[str, object]] = {"length": 16, "steps": 20, "batch": 4, "samples": 20}

    attention: str = "softmax"
    unit: str = "relu_squared(normaliser=const, constant=4.0)"
    blocks: int = 2
    dim: int = 32
    mlp_dim: int = 152
    """of the blocks: so that they have as many weights as twice as many units"""
    length: int = 64
    steps: int = 600
    learning_rate: float = 1.2e-2
    batch: int = 8
    samples: int = 512
    """of held-out text"""

    def observe(self, seed: int) -> Observation:
        """Train all."""
        new = samples("valid", self.samples, self.length, generator(seed, "valid"))
        configs = {
            "blocks": self.of_blocks(seed),
            "two": self.of_units(2 * self.blocks, self.dim, seed),
            "one": self.of_units(self.blocks, self.dim, seed),
            "wide": self.of_units(self.blocks, 2 * self.dim, seed),
        }
        courses = {
            name: learned(config, new, steps=self.steps, batch=self.batch, learning_rate=self.learning_rate)[1]
            for name, config in configs.items()
        }
        bits = {name: course.bits for name, course in courses.items()}
        table = float(pair_bits()[new[:, :-1], new[:, 1:]].mean())
        weights = {name: LanguageModel(config).parameter_count() for name, config in configs.items()}
        values = {
            "two": bits["two"] - bits["blocks"],
            "one": bits["one"] - bits["blocks"],
            "read": float(max(bits.values()) <= table - READ),
            "seen": float(bits["wide"] <= bits["one"] - SEEN),
            "same": weights["two"] / weights["blocks"],
            "half": weights["one"] / weights["blocks"],
            "unfinished": max(course.change for course in courses.values()),
        }
        labels = {
            "blocks": "attention and MLP",
            "two": "two units for each",
            "one": "one unit for each",
            "wide": "one of twice the width",
        }
        bars = {"": (list(labels.values()), [bits[name] for name in labels])}
        return Observation(values, {"bits": bars, "loss": {name: course.loss for name, course in courses.items()}})

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

    def of_units(self, layers: int, dim: int, seed: int) -> ModelConfig:
        """Gated units."""
        return ModelConfig(
            vocab_size=LETTERS,
            dim=dim,
            layers=layers,
            heads=1,
            head_dim=dim // 2,
            attention=(self.unit,),
            block="gated_unit",
            mlp="none",
            bias=True,
            max_length=self.length,
            seed=seed,
        )
