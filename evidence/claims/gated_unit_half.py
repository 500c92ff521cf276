"""One gated unit does the work of attention and MLP.

Claim: A gated attention unit, with one head and about half of the weights, stands for a whole layer of multi-head
attention and MLP: two of them, of as many weights as the layer, are at least as good.
Source: Hua et al. 2022, Transformer Quality in Linear Time, section 2
Control: Every model uses its attention: without it a model sees one letter, and knows no more than the table of pairs
of letters, which is counted over the training text; each is 0.3 bits below that at least. A better model is seen to be
better: units of twice the width win by 0.05 bits at least. The models have the weights that they are said to have.
Every training is over.
Measured: Bits per letter on held-out addresses, causal models trained on the others for as many steps on the same
samples, with rotary positions: two blocks with four heads, four units with one head of half the width and squared ReLU
over a constant, and two such units. Far below a thousandth of the published training.
"""

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, pair_bits, samples
from evidence.claims._training import shape
from evidence.claims._units import OVER, learned
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig

READ = 0.3
"""bits below the table of pairs of letters, for a model whose attention reads its context"""
SEEN = 0.05
"""bits, of twice the width"""


class GatedUnitHalf(Claim):
    controls = (
        Control("read", "1 if every model uses its attention", 1.0, tolerance=0.0, small=False),
        Control("seen", "1 if twice the width wins", 1.0, tolerance=0.0, small=False),
        Control("same", "weights, twice the units / blocks", 1.0, tolerance=0.02),
        Control("half", "weights, as many units / blocks", 0.5, tolerance=0.03),
        OVER,
    )
    findings = (
        Finding("two", "bits per letter, two units for a block - blocks", at_most=0.02),
        Finding("one", "bits per letter, one unit for a block - blocks", at_most=0.02),
    )
    least_seeds = 5
    revised = Revision(
        "It was judged while losses still fell, by units that started where they hardly learn: they start with "
        "gains of 1 now and are trained to a learning rate of 0, at half the width. The bounds are as they were; a "
        "control of one letter has given way to two that ask whether attention is used and whether a better model is "
        "seen to be better.",
        (0, 1, 2, 3, 4, 900),
    )
    plots = (Plot("bits", "Held-out text", "", "bits per letter"), Plot("loss", "Training", "step", "bits per letter"))

    attention: str = "softmax"
    unit: str = "relu_squared(normaliser=const, constant=4.0)"
    blocks: int = 2
    dim: int = 32
    mlp_dim: int = 152
    """of the blocks: so that they have as many weights as twice as many units"""
    length: int = setting(64, tiny=16)
    steps: int = setting(600, tiny=20)
    learning_rate: float = 1.2e-2
    batch: int = setting(8, tiny=4)
    samples: int = setting(512, tiny=20)
    """of held-out text"""

    def observe(self, seed: int) -> Observation:
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
        return shape(
            self,
            LETTERS,
            seed,
            layers=self.blocks,
            heads=4,
            attention=self.attention,
            mlp_dim=self.mlp_dim,
            max_length=self.length,
        )

    def of_units(self, layers: int, dim: int, seed: int) -> ModelConfig:
        return shape(
            self,
            LETTERS,
            seed,
            dim=dim,
            layers=layers,
            heads=1,
            head_dim=dim // 2,
            attention=self.unit,
            block="gated_unit",
            mlp="none",
            bias=True,
            max_length=self.length,
        )
