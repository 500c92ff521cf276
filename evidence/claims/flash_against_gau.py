"""FLASH has the quality of gated units in linear time.

Claim: Mixed chunks, squared ReLU weights within a chunk and linear attention across chunks, give gated units the
quality of quadratic ones at a cost that is linear in the length.
Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3
Control: With one chunk for the whole sequence FLASH is the quadratic unit: the same values. Where every key is seen,
the quadratic unit's operations grow as the square of the length, by definition. Every model uses its attention: without
it a model sees one letter, and knows no more than the table of pairs of letters, which is counted over the training
text; each is 0.3 bits below that at least. A better model is seen to be better: quadratic units of twice the width win
by 0.05 bits at least. Every training is over.
Measured: Bits per letter on held-out addresses, causal models of two gated units with rotary positions, 256 letters in
chunks of 32, trained on the others on the same samples, both with weights divided by the number of visible keys.
Operations of one forward pass of the mechanism by length, bidirectional (causal ones skip what is not seen, in pieces),
counted without a clock.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._growth import exponent, operations
from evidence.claims._letters import LETTERS, pair_bits, samples
from evidence.claims._training import shape
from evidence.claims._units import OVER, learned
from regard import Attention, Heads, build
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig

READ = 0.3
"""bits below the table of pairs of letters, for a model whose attention reads its context"""
SEEN = 0.05
"""bits, of twice the width"""


class FlashAgainstGau(Claim):
    controls = (
        Control("whole", "one chunk: FLASH - quadratic, largest difference", 0.0, tolerance=1e-5),
        Control("quadratic", "quadratic: operations ~ length to the power of", 2.0, tolerance=0.1),
        Control("read", "1 if every model uses its attention", 1.0, tolerance=0.0, small=False),
        Control("seen", "1 if twice the width wins", 1.0, tolerance=0.0, small=False),
        OVER,
    )
    findings = (
        Finding("bits", "bits per letter, FLASH - quadratic", at_most=0.05),
        Finding("linear", "FLASH: operations ~ length to the power of", at_most=1.1),
        Finding(
            "across", "FLASH: bits per letter of the last chunk, alone - after the others", at_least=0.05, states=False
        ),
        Finding(
            "before",
            "quadratic: bits per letter of the last chunk, alone - after the others",
            at_least=0.05,
            states=False,
        ),
    )
    least_seeds = 5
    revised = Revision(
        "Three of five trainings of FLASH read no context, since units started where they hardly learn: they "
        "start with gains of 1 now and are trained to a learning rate of 0, at half the width and half the length. "
        "The control of n^2 counted the causal form, which skips what is not seen. The bounds are as they were; two "
        "controls, and what the letters before a chunk are worth, are new.",
        (0, 1, 2, 3, 4, 900),
    )
    plots = (
        Plot("bits", "Held-out text", "", "bits per letter"),
        Plot("operations", "One forward pass", "length", "operations", log_x=True, log_y=True),
        Plot("loss", "Training", "step", "bits per letter"),
    )

    flash: str = "mixed_chunk(chunk_size={chunk_size}, normaliser=visible)"
    quadratic: str = "relu_squared(normaliser=visible)"
    chunk_size: int = setting(32, tiny=8)
    dim: int = 32
    length: int = setting(256, tiny=16)
    lengths: tuple[int, ...] = setting((512, 1024, 2048, 4096), tiny=(512, 1024, 2048))
    """at which operations are counted"""
    steps: int = setting(700, tiny=20)
    learning_rate: float = 1.2e-2
    batch: int = setting(2, tiny=4)
    samples: int = setting(128, tiny=20)
    """of held-out text"""

    def observe(self, seed: int) -> Observation:
        new = samples("valid", self.samples, self.length, generator(seed, "valid"))
        flash, quadratic = (spec.format(chunk_size=self.chunk_size) for spec in (self.flash, self.quadratic))
        models = {"FLASH": (flash, self.dim), "quadratic": (quadratic, self.dim), "wide": (quadratic, 2 * self.dim)}
        found = {
            name: learned(
                self.config(spec, dim, seed), new, steps=self.steps, batch=self.batch, learning_rate=self.learning_rate
            )
            for name, (spec, dim) in models.items()
        }
        courses = {name: course for name, (_, course) in found.items()}
        bits = {name: course.bits for name, course in courses.items()}
        work = {
            name: [float(operations(self.call(spec, length, seed))) for length in self.lengths]
            for name, spec in (("FLASH", flash), ("quadratic", quadratic))
        }
        one, whole = (
            self.call(spec.format(chunk_size=self.length), self.length, seed, causal=True)().values.detach()
            for spec in (self.flash, self.quadratic)
        )
        table = float(pair_bits()[new[:, :-1], new[:, 1:]].mean())
        values = {
            "bits": bits["FLASH"] - bits["quadratic"],
            "linear": exponent(self.lengths, work["FLASH"]),
            "across": self.across(found["FLASH"][0], new),
            "before": self.across(found["quadratic"][0], new),
            "quadratic": exponent(self.lengths, work["quadratic"]),
            "read": float(max(bits.values()) <= table - READ),
            "seen": float(bits["wide"] <= bits["quadratic"] - SEEN),
            "whole": float((one - whole).abs().max()),
            "unfinished": max(course.change for course in courses.values()),
        }
        curves: dict[str, dict[str, Curve]] = {
            "bits": {"": (list(bits), list(bits.values()))},
            "operations": {name: (self.lengths, counts) for name, counts in work.items()},
            "loss": {name: course.loss for name, course in courses.items()},
        }
        return Observation(values, curves)

    @torch.no_grad()
    def across(self, model: LanguageModel, new: Tensor) -> float:
        """Bits per letter that the last chunk costs more where the model is given this chunk alone."""
        begin = self.length - self.chunk_size
        after, alone = model(new[:, :-1]).logits[:, begin:], model(new[:, begin:-1]).logits
        lost = [float(cross_entropy(logits.mT, new[:, begin + 1 :])) / math.log(2) for logits in (alone, after)]
        return lost[0] - lost[1]

    def config(self, spec: str, dim: int, seed: int) -> ModelConfig:
        return shape(
            self,
            LETTERS,
            seed,
            dim=dim,
            layers=2,
            heads=1,
            head_dim=dim // 2,
            attention=spec,
            block="gated_unit",
            mlp="none",
            bias=True,
            max_length=self.length,
        )

    def call(self, spec: str, length: int, seed: int, *, causal: bool = False) -> partial:
        """The mechanism on random vectors of a unit's widths."""
        heads = Heads(count=1, key_dim=self.dim // 2, value_dim=2 * self.dim, causal=causal, max_length=length)
        mechanism: Attention = build(spec, heads).eval()
        q, k = torch.randn(2, 1, 1, length, self.dim // 2, generator=generator(seed, "vectors", length))
        v = torch.randn(1, 1, length, 2 * self.dim, generator=generator(seed, "values", length))
        return partial(mechanism, q, k, v)
