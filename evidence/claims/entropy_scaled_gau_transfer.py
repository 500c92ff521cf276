"""Gated units with an entropy-scaled softmax work at other lengths.

Claim: A gated attention unit with a softmax whose logits grow with log n works at lengths that it was not trained on
better than the published unit, with relu^2 divided by the number of keys.
Source: Su et al. 2022 (GAU-alpha), technical report; J. Su 2022, on softmax in gated attention units
Control: Every model reads its context, since one that does not has nothing to lose: half a bit below the frequencies of
the letters at least. The lengths differ in what the letters stand in, and in nothing else: with a window of 8, two
units see 16 letters to each side, and predict alike at every length with so many. A unit that does not transfer is
seen: relu^2 with the same weights, summed and not averaged, is the same at the length of the training and eight times
too large at eight times the length. Every training is over.
Measured: Bits per hidden letter of held-out addresses: the same letters at every length, each time with more of the
text around them. Encoders of two gated units with pre-norm and rotary positions, all of the same sizes, trained on the
others at one length: growth is what is lost at another length, over the length of the training. There an entropy-scaled
softmax is softmax, so that one training serves both.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, samples, text
from evidence.claims._units import OVER, Course, finished, opened
from regard.core.attention import generator
from regard.models import Encoder, EncoderConfig, MaskedLanguageModel

HIDDEN = 0.15
"""share of the letters that are predicted"""
LEARNED = 0.5
"""bits below the frequencies of letters, for a model that reads its context at all"""
LOST = 0.1
"""bits, of a unit that certainly does not transfer"""


class EntropyScaledGauTransfer(Claim):
    controls = (
        Control("read", "1 if every model reads its context", 1.0, tolerance=0.0, small=False),
        Control("same", "trained length: same weights, largest difference", 0.0, tolerance=1e-3),
        Control("window", "window of 8: growth at the longest", 0.0, tolerance=1e-4),
        Control("seen", "1 if sums are seen not to transfer", 1.0, tolerance=0.0, small=False),
        OVER,
    )
    findings = (
        Finding("longest", "growth at the longest, relu^2 - scaled softmax", at_least=0.05),
        Finding("shortest", "growth at the shortest, relu^2 - scaled softmax", at_least=0.0),
        Finding("scale", "growth at the longest, softmax - scaled softmax", at_least=0.0, states=False),
        Finding("kept", "growth at the longest, scaled softmax", at_most=0.1, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "In four of five seeds relu^2 read no context after 800 steps, and each length had letters of its own: "
        "units now start with gains of 1, are trained to a learning rate of 0, and predict the same letters at every "
        "length; the controls are others. The bounds are as they were.",
        (0, 1, 2, 3, 4, 900),
    )
    plots = (
        Plot("bits", "Held-out text", "length", "bits per hidden letter", log_x=True),
        Plot("loss", "Training", "step", "bits per hidden letter"),
    )

    relu: str = "relu_squared(normaliser=visible)"
    summed: str = "relu_squared(normaliser=const, constant={constant})"
    """with the weights of `relu`, of which it is the same at the length of the training"""
    softmax: str = "softmax"
    scaled: str = "entropy_scaled(base_length={length})"
    """with the weights of `softmax`, of which it is the same at the length of the training"""
    window: str = "local(window=8)"
    """with the weights of `softmax` too"""
    lengths: tuple[int, ...] = setting((16, 64, 128, 256, 512), tiny=(8, 40, 80))
    """the second one is that of the training"""
    dim: int = setting(32, tiny=16)
    steps: int = setting(1200, tiny=20)
    learning_rate: float = 1e-2
    batch: int = setting(16, tiny=4)
    samples: int = setting(512, tiny=50)
    """of held-out text, as long as the longest; what is hidden in the middle, as long as the shortest, is predicted"""

    def observe(self, seed: int) -> Observation:
        courses: dict[str, Course] = {}
        models: dict[str, MaskedLanguageModel] = {}
        for name, spec in (("relu", self.relu), ("softmax", self.softmax)):
            models[name], courses[name] = self.trained(spec, seed)
        models["scaled"] = self.given(models["softmax"], self.scaled, seed)
        models["window"] = self.given(models["softmax"], self.window, seed)
        models["summed"] = self.given(models["relu"], self.summed, seed)
        bits = {name: self.bits(model, seed) for name, model in models.items()}
        grown = {name: [value - found[1] for value in found] for name, found in bits.items()}
        most = max(course.bits for course in courses.values())
        values = {
            "longest": grown["relu"][-1] - grown["scaled"][-1],
            "shortest": grown["relu"][0] - grown["scaled"][0],
            "scale": grown["softmax"][-1] - grown["scaled"][-1],
            "kept": grown["scaled"][-1],
            "window": grown["window"][-1],
            "seen": float(grown["summed"][-1] - grown["relu"][-1] >= LOST),
            "read": float(most <= self.frequencies() - LEARNED),
            "same": max(
                abs(bits[one][1] - bits[other][1]) for one, other in (("scaled", "softmax"), ("summed", "relu"))
            ),
            "unfinished": max(course.change for course in courses.values()),
        }
        curves = {
            "bits": {name: (self.lengths, found) for name, found in bits.items()},
            "loss": {name: course.loss for name, course in courses.items()},
        }
        return Observation(values, curves)

    def model(self, spec: str, seed: int) -> MaskedLanguageModel:
        length, width = self.lengths[1], self.dim // 2
        config = EncoderConfig(
            vocab_size=LETTERS + 1,
            dim=self.dim,
            layers=2,
            heads=1,
            head_dim=width,
            attention=(spec.format(length=length, constant=math.sqrt(width * length)),),
            position="rotary",
            block="gated_unit",
            mlp="none",
            bias=True,
            seed=seed,
        )
        model = MaskedLanguageModel(Encoder(config))
        opened(model)
        return model

    def given(self, model: MaskedLanguageModel, spec: str, seed: int) -> MaskedLanguageModel:
        """Another mechanism with the weights of a model."""
        other = self.model(spec, seed).eval()
        other.load_state_dict(model.state_dict())
        return other

    def trained(self, spec: str, seed: int) -> tuple[MaskedLanguageModel, Course]:
        model, draw, length = self.model(spec, seed), generator(seed, "train"), self.lengths[1]
        new, hidden = concealed("valid", 4 * self.samples, length, generator(seed, "watched"))

        def loss() -> Tensor:
            return hidden_bits(model, *concealed("train", self.batch, length, draw))

        def watched() -> float:
            return float(hidden_bits(model, new, hidden))

        return model, finished(model, loss, watched, steps=self.steps, learning_rate=self.learning_rate)

    @torch.no_grad()
    def bits(self, model: MaskedLanguageModel, seed: int) -> list[float]:
        """Of the same new letters, at every length."""
        shortest, longest = self.lengths[0], self.lengths[-1]
        new, hidden = concealed("valid", self.samples, longest, generator(seed, "new"))
        found = []
        for length in self.lengths:
            around = slice((longest - length) // 2, (longest + length) // 2)
            middle = slice((length - shortest) // 2, (length + shortest) // 2)
            found.append(float(hidden_bits(model, new[:, around], hidden[:, around], asked=middle)))
        return found

    @staticmethod
    def frequencies() -> float:
        """Bits of a held-out letter whose frequency in the training text is known, and nothing else."""
        share = torch.bincount(text("train"), minlength=LETTERS).double()
        return float(-(share / share.sum()).log2()[text("valid")].mean())


def concealed(split: str, count: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Letters, and which of them are hidden."""
    letters = samples(split, count, length - 1, draw)
    return letters, torch.rand(letters.shape, generator=draw) < HIDDEN


def hidden_bits(model: MaskedLanguageModel, letters: Tensor, hidden: Tensor, asked: slice = slice(None)) -> Tensor:
    """Bits of the letters that are hidden, where they are asked for."""
    logits = model(torch.where(hidden, LETTERS, letters)).logits[:, asked]
    of = hidden[:, asked]
    return cross_entropy(logits[of], letters[:, asked][of]) / math.log(2)
