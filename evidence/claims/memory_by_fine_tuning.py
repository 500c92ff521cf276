"""A memory can be added, and enlarged, by fine-tuning.

Claim: A decoder that was trained without a memory learns to use one in a short fine-tuning, and predicts better with
it; and one that was trained with a small memory and fine-tuned with a large one is better than one that was trained
with the large one from the beginning.
Source: Wu et al. 2022, sections 4.4 and 4.5, table 5 and figure 6
Control: Where the gate is closed, which stands for no memory, nothing of earlier segments is seen. A decoder without a
memory that is asked for a value in an earlier segment can only guess, also after fine-tuning; fine-tuned with a memory
it answers all. Trainings that are compared are over.
Measured: Bits per letter on held-out addresses behind the first segment, of decoders trained here in two stages of as
many steps, on the same samples within a seed: without a memory, then with one or without; with a small one, then with a
large one; with the large one twice. Learning rates rise and fall in both stages. Seen on a seed that does not count,
against a baseline whose convolution did not read across segments: 0.015 bits gained by adding a memory.
"""

from dataclasses import replace

import torch

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS
from evidence.claims._plateau import FINISHED, change
from evidence.claims._remembering import bits, far, held_out, on_letters, share_right
from evidence.claims._segments import learned
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages

EFFECT = 0.005
"""bits per letter that are to be seen"""
SHORT = 3
"""width of the convolution over embeddings"""
NONE = {"none": "memorizing(pairs=1, top=1, gate=-100.0)"}
"""No memory: nothing passes this gate, and no gradient either. Its convolution reads on across segments, as that of a
decoder with a memory does, and as that of one built without does not."""


class MemoryByFineTuning(Claim):
    controls = (
        Control("closed", "gate closed: largest difference of a logit", 0.0, tolerance=1e-4),
        Control("far none", "far value, tuned without: accuracy", 0.25, tolerance=0.1),
        Control("far memory", "far value, tuned with memory: accuracy", 1.0, tolerance=0.1, small=False),
        FINISHED,
    )
    findings = (
        Finding("added", "bits per letter, tuned without - with memory", at_least=EFFECT),
        Finding("enlarged", "bits per letter, large throughout - small first", at_least=EFFECT),
        Finding("late", "bits per letter, memory added - large throughout", at_most=0.05, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "Memories were to gain any bits at all, which a gain of none can never be told from: seeds 0 to 4 gave "
        "0.0000 (-0.0006 to 0.0005) when one is added and -0.0004 (-0.0020 to 0.0011) when it is enlarged. They have "
        "to gain 0.005 now, a third of what the pilot saw. Seeds 100 to 104 were judged by that, but one of them had "
        "learnt only 0.66 of the far values in 150 steps, so that a control was missed; these trainings take 300 "
        "steps now. What is measured on letters is as it was.",
        (0, 1, 2, 3, 4, 100, 101, 102, 103, 104),
    )
    plots = (
        Plot("bits", "Held-out text", "memory", "bits per letter"),
        Plot("loss", "Last training", "step", "nats per letter"),
    )

    memory: str = "memorizing(pairs={pairs}, top=16, gate={gate})"
    added: float = -2.0
    """gate of a memory at its beginning: it begins with an eighth"""
    pairs: tuple[int, int] = setting((64, 192), tiny=(4, 8))
    """of the small memory and the large one, each as far as the text before the segment"""
    segment: int = setting(64, tiny=8)
    rows: int = setting(4, tiny=2)
    """segments of a row"""
    dim: int = setting(32, tiny=16)
    layers: int = 2
    heads: int = 4
    steps: int = setting(200, tiny=10)
    tuning: int = setting(100, tiny=20)
    """steps after those"""
    batch: int = setting(4, tiny=4)
    learning_rate: float = setting(1e-2, tiny=2e-2)
    samples: int = setting(128, tiny=20)
    """rows of held-out text"""
    far_steps: int = setting(300, tiny=2)
    far_segment: int = setting(16, tiny=6)
    far_batch: int = 32
    values: int = 4
    fillers: int = setting(8, tiny=4)

    def observe(self, seed: int) -> Observation:
        small, large = (self.spec(pairs, self.added) for pairs in self.pairs)
        first = {name: self.model(memory, LETTERS, seed) for name, memory in {**NONE, "small": small}.items()}
        first["large"] = self.model(large, LETTERS, seed)
        for model in first.values():
            self.train(model, self.steps)
        tuned = {
            "no memory": self.tuned(first["none"], NONE["none"]),
            "added": self.tuned(first["none"], large),
            "small first": self.tuned(first["small"], large),
            "large throughout": self.tuned(first["large"], large),
        }
        nats = {name: self.train(model, self.tuning, stage="tuning") for name, model in tuned.items()}
        text = held_out(seed, self.samples, self.segment * self.rows)
        found = {name: bits(model, text, behind=self.segment) for name, model in tuned.items()}
        values = {
            **{f"bits {name}": value for name, value in found.items()},
            "added": found["no memory"] - found["added"],
            "enlarged": found["large throughout"] - found["small first"],
            "late": found["added"] - found["large throughout"],
            "closed": self.passed(tuned["no memory"], text[:8, :-1]),
            "unfinished": max(change(each) for each in nats.values()),
            **self.asked(seed),
        }
        curves = {"bits": {"held-out": (list(found), list(found.values()))}}
        return Observation(values, {**curves, "loss": {name: averages(each) for name, each in nats.items()}})

    def spec(self, pairs: int, gate: float) -> str:
        return self.memory.format(pairs=pairs, gate=gate)

    def model(self, memory: str, symbols: int, seed: int, *, segment: int | None = None) -> LanguageModel:
        """A decoder whose last layer has the memory; with a segment of its own, it has one layer."""
        layers = self.layers if segment is None else 1
        return decoder(
            self,
            symbols,
            seed,
            layers=layers,
            memory=("none",) * (layers - 1) + (memory,),
            max_length=segment or self.segment,
            short_convolution=SHORT,
        )

    def tuned(self, trained: LanguageModel, memory: str) -> LanguageModel:
        """A decoder with these weights and this memory, whose gates and gains are taken over if it had the like."""
        weights = trained.state_dict()
        if trained.config.memories[-1] == NONE["none"] != memory:
            weights = {name: x for name, x in weights.items() if ".memory." not in name}
        model = LanguageModel(replace(trained.config, memory=(*trained.config.memory[:-1], memory)))
        model.load_state_dict(weights, strict=False)
        return model

    def train(self, model: LanguageModel, steps: int, stage: str = "train") -> list[float]:
        length, rate = self.segment * self.rows, self.learning_rate
        return on_letters(model, length, steps=steps, batch=self.batch, learning_rate=rate, stage=stage)

    @torch.no_grad()
    def passed(self, model: LanguageModel, tokens: torch.Tensor) -> float:
        """The largest change of a logit of the last segment when all is changed that only a memory brings there."""
        other = tokens.clone()
        before = tokens.shape[1] - self.segment - SHORT + 1
        other[:, :before] = tokens[:, :before].flip(0)
        one, another = (model(each).logits[:, -self.segment :] for each in (tokens, other))
        return float((one - another).abs().max())

    def asked(self, seed: int) -> dict[str, float]:
        """Accuracy of what was trained without a memory and fine-tuned without and with one, on a far value."""
        draw, whole = generator(seed, "far"), 2 * self.far_segment
        kinds = {"values": self.values, "fillers": self.fillers, "draw": draw}
        places = range(self.far_segment - SHORT + 1)

        def train(model: LanguageModel) -> None:
            learned(
                model,
                lambda: far(self.far_batch, whole, places, **kinds),
                steps=self.far_steps,
                learning_rate=self.learning_rate,
            )

        plain = self.model(NONE["none"], self.values + self.fillers + 1, seed, segment=self.far_segment)
        train(plain)
        right: dict[str, float] = {}
        for name, memory in {**NONE, "memory": self.spec(self.far_segment, 0.0)}.items():
            model = self.tuned(plain, memory)
            train(model)
            right[f"far {name}"] = share_right(model, lambda: far(512, whole, places, **kinds))
        return right
