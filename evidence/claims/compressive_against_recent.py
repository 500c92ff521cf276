"""A compressive memory beats a recent one of as many slots.

Claim: Keeping what leaves the memory in a slot for every few positions, and not dropping it, makes a better language
model than the memory of Transformer-XL of the same number of slots.
Source: Rae et al. 2020, sections 4 and 5, tables 4 and 6
Control: One value among fillers, asked for when it is further away than the recent memory reaches: that one can only
guess, and a recent memory that reaches as far as the compressive one answers all. Random symbols that repeat themselves
after a lag that the recent memory holds and the compressive one has to compress: the recent one saves every bit, so
that its side can win. Every training on letters is over.
Measured: Bits per letter on held-out addresses behind as many letters as the compressive memory reaches, of decoders of
two layers that were trained on the others, on the same samples within a seed. The compression is the mean, which won
over a convolution by 0.011 bits and over the recent memory by 0.007 on a seed that does not count. Beside: the
convolution, trained by the reconstruction of attention, which was the best of the published; and what a recent memory
of the same reach, which has more slots, would save.
"""

import math
from collections.abc import Mapping

import torch

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._letters import LETTERS
from evidence.claims._plateau import FINISHED, change
from evidence.claims._remembering import bits, far, held_out, on_letters, share_right
from evidence.claims._segments import lagged, learned, read
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages
from regard_lab.tasks.base import IGNORE

SHORT = 3
"""width of the convolution over embeddings, by which a value is in the two that follow it too"""
CHANCE = 0.25
"""of the answers that one who sees no value gives, with four of them"""


class CompressiveAgainstRecent(Claim):
    controls = (
        Control("far recent", "far value, recent: accuracy", CHANCE, tolerance=0.1),
        Control("far reach", "far value, recent of that reach: accuracy", 1.0, tolerance=0.1),
        Control("lag recent", "near lag, recent: share of bits saved", 1.0, tolerance=0.1),
        FINISHED,
    )
    findings = (
        Finding("text", "bits per letter, recent - compressive", at_least=0.0),
        Finding("far", "far value: accuracy, compressive - recent", at_least=0.2, resolution=1 / 512),
        Finding("convolution", "bits per letter, recent - compressive by convolution", at_least=0.0, states=False),
        Finding("reach", "bits per letter, recent - recent of the compressive's reach", at_least=0.0, states=False),
        Finding("lag", "near lag: share of bits saved, recent - compressive", at_least=0.0, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("bits", "Held-out text", "memory", "bits per letter"),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    recent: str = "recent(length={length})"
    compressive: str = "compressive(length={length}, compressed={compressed}, rate={rate}, function=mean)"
    convolution: str = "compressive(length={length}, compressed={compressed}, rate={rate})"
    """trained by the reconstruction of attention"""
    length: int = setting(4, tiny=2)
    """positions that the compressive memory keeps as they are; the recent one has `compressed` more"""
    compressed: int = setting(8, tiny=2)
    """slots for those before"""
    rate: int = setting(4, tiny=4)
    """positions in a slot"""
    segment: int = setting(8, tiny=4)
    dim: int = setting(32, tiny=16)
    layers: int = 2
    heads: int = 4
    steps: int = setting(300, tiny=20)
    batch: int = setting(32, tiny=24)
    learning_rate: float = setting(1e-2, tiny=2e-2)
    samples: int = setting(512, tiny=200)
    """rows of held-out text, and of far values"""
    far_steps: int = setting(150, tiny=90)
    lag: int = setting(10, tiny=4)
    lag_steps: int = setting(150, tiny=50)
    symbols: int = setting(4, tiny=2)
    """kinds of what repeats itself"""
    values: int = 4
    """kinds of far values"""
    fillers: int = setting(8, tiny=4)

    @property
    def reach(self) -> int:
        """Positions that the compressive memory stands for in one layer."""
        return self.length + self.rate * self.compressed

    @property
    def memories(self) -> Mapping[str, str]:
        sizes = {"compressed": self.compressed, "rate": self.rate}
        return {
            "recent": self.recent.format(length=self.length + self.compressed),
            "compressive": self.compressive.format(length=self.length, **sizes),
            "reach": self.recent.format(length=self.reach),
            "convolution": self.convolution.format(length=self.length, **sizes),
        }

    def observe(self, seed: int) -> Observation:
        found: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        unfinished: list[float] = []
        for name, memory in self.memories.items():
            found[name], nats = self.letters(memory, seed)
            unfinished.append(change(nats))
            losses[name] = averages(nats)
        right = {name: self.answered(memory, seed) for name, memory in self.memories.items() if name != "convolution"}
        saved = {name: self.saved(self.memories[name], seed) for name in ("recent", "compressive")}
        values = {
            **{f"bits {name}": value for name, value in found.items()},
            **{f"far {name}": value for name, value in right.items()},
            **{f"lag {name}": value for name, value in saved.items()},
            "text": found["recent"] - found["compressive"],
            "reach": found["recent"] - found["reach"],
            "convolution": found["recent"] - found["convolution"],
            "far": right["compressive"] - right["recent"],
            "lag": saved["recent"] - saved["compressive"],
            "unfinished": max(unfinished),
        }
        return Observation(values, {"bits": {"held-out": (list(found), list(found.values()))}, "loss": losses})

    def model(self, memory: str, symbols: int, layers: int, seed: int) -> LanguageModel:
        return decoder(
            self,
            symbols,
            seed,
            layers=layers,
            position="transformer_xl",
            memory=memory,
            max_length=self.segment,
            short_convolution=SHORT,
        )

    def letters(self, memory: str, seed: int) -> tuple[float, list[float]]:
        """Bits per letter on new text, and the nats of the training."""
        model, behind = self.model(memory, LETTERS, self.layers, seed), -(-self.reach // self.segment) * self.segment
        whole = behind + self.segment
        nats = on_letters(model, whole, steps=self.steps, batch=self.batch, learning_rate=self.learning_rate)
        return bits(model, held_out(seed, self.samples, whole), behind=behind), nats

    def answered(self, memory: str, seed: int) -> float:
        """Accuracy of one layer that is asked for a value that the recent memory has lost."""
        model, draw = self.model(memory, self.values + self.fillers + 1, 1, seed), generator(seed, "far")
        asked_in = -(-self.reach // self.segment) * self.segment
        places = range(asked_in - self.reach, asked_in - self.length - self.compressed - SHORT + 1)
        kinds = {"values": self.values, "fillers": self.fillers, "draw": draw}
        whole = asked_in + self.segment
        learned(
            model,
            lambda: far(self.batch, whole, places, **kinds),
            steps=self.far_steps,
            learning_rate=self.learning_rate,
        )
        return share_right(model, lambda: far(self.samples, whole, places, **kinds))

    def saved(self, memory: str, seed: int) -> float:
        """The share of the bits of what repeats itself that one layer with this memory saves."""
        draw, laps = generator(seed, "lag"), self.segment * -(-2 * self.lag // self.segment)
        model = self.model(memory, self.symbols, 1, seed)
        learned(
            model,
            lambda: lagged(2 * self.batch, laps, self.lag, self.symbols, draw),
            steps=self.lag_steps,
            learning_rate=self.learning_rate,
        )
        inputs, targets = lagged(self.samples, laps, self.lag, self.symbols, draw)
        with torch.no_grad():
            each, _ = read(model, inputs, targets)
        return 1 - float(each.sum() / (targets != IGNORE).sum()) / math.log(self.symbols)
