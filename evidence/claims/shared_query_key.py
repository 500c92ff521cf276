"""A shared projection for queries and keys loses nothing.

Claim: Keys that are the queries, divided by their length, with no token attending to itself while there is another, do
not perform worse than a projection of their own, at any step of the training.
Source: Kitaev, Kaiser, Levskaya 2020 (Reformer), sections 2 and 5 (shared-QK, figure 3)
Control: Models with keys of their own read: in the end they are 0.2 bits below the table of pairs of letters, which
sees one letter, and far from any floor, so that a difference can show. A loss is seen: equal weights, which tell no
letter from another, lose 0.05 bits or more. A shared projection can win: after the whole training it beats keys of
their own after a third of it. The learning rate ends at 0.
Measured: Bits per letter of held-out addresses, always the same ones, at a sixth, a third, half, two thirds and all of
the steps of one training: shared less separate projections, full attention in two layers with learned positions, the
same letters in the same order.
"""

import math

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, nats, pair_bits, samples
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard_lab.benchmark.fitting import train

READ = 0.2
"""bits below the table of pairs of letters, for a model that reads more than one letter"""
EQUAL = 0.02
"""bits that are nothing"""
SEEN = 0.05
"""bits that are a loss"""


class SharedQueryKey(Claim):
    controls = (
        Control("read", "1 if keys of their own read", 1.0, tolerance=0.0, small=False),
        Control("seen", "1 if equal weights are seen to lose", 1.0, tolerance=0.0, small=False),
        Control("later", "1 if shared wins by three times the steps", 1.0, tolerance=0.0, small=False),
    )
    findings = (
        Finding("at 1", "bits at a sixth of the steps, shared - separate", at_most=EQUAL),
        Finding("at 2", "bits at a third of the steps, shared - separate", at_most=EQUAL),
        Finding("at 3", "bits at half of the steps, shared - separate", at_most=EQUAL),
        Finding("at 4", "bits at two thirds of the steps, shared - separate", at_most=EQUAL),
        Finding("at 6", "bits at the end, shared - separate", at_most=EQUAL),
        Finding("mean", "bits, mean over these steps, shared - separate", at_most=EQUAL, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "Every model duplicated symbols without a fault, so that nothing but a failure to learn could be seen, "
        "and the mean loss of a training was beside the claim. Letters of text take their place, without a ceiling, "
        "and differences at equal steps state the claim.",
        (0, 1, 2, 3, 4, 900),
    )
    plots = (Plot("bits", "Held-out text", "step", "bits per letter"),)

    shared: str = "lsh(num_buckets=1, rounds=1, impl=reference)"
    """one bucket: full attention, by definition, which is faster where sequences are short"""
    separate: str = "softmax"
    blind: str = "uniform"
    dim: int = setting(32, tiny=8)
    length: int = setting(32, tiny=16)
    steps: int = setting(400, tiny=12)
    learning_rate: float = 1e-2
    batch: int = setting(16, tiny=4)
    texts: int = setting(256, tiny=16)
    """held out"""

    def observe(self, seed: int) -> Observation:
        steps, found = self.watched, {}
        for name in ("shared", "separate", "blind"):
            found[name] = self.bits(getattr(self, name), seed)
        shared, separate = found["shared"], found["separate"]
        new = self.held_out(seed)
        table = float(pair_bits()[new[:, :-1], new[:, 1:]].mean())
        lost = [one - other for one, other in zip(shared, separate, strict=True)]
        values = {f"at {place}": lost[place - 1] for place in (1, 2, 3, 4, 6)}
        values |= {
            "mean": sum(lost) / len(lost),
            "read": float(separate[-1] <= table - READ),
            "seen": float(found["blind"][-1] >= separate[-1] + SEEN),
            "later": float(shared[-1] < separate[1]),
        }
        curves: dict[str, Curve] = {name: (steps, bits) for name, bits in found.items()}
        return Observation(values, {"bits": curves | {"pairs of letters": (steps, [table] * len(steps))}})

    @property
    def watched(self) -> list[int]:
        return [self.steps * sixth // 6 for sixth in range(1, 7)]

    def held_out(self, seed: int) -> Tensor:
        """(texts, length + 1) letters."""
        return samples("valid", self.texts, self.length, generator(seed, "new"))

    def bits(self, spec: str, seed: int) -> list[float]:
        """Of held-out letters at the steps that are watched."""
        model = decoder(
            self, LETTERS, seed, layers=2, heads=4, attention=spec, position="learned", max_length=self.length
        )
        draw = generator(seed, "letters")
        new = self.held_out(seed)
        found: list[float] = []

        @torch.no_grad()
        def watch() -> None:
            model.eval()
            found.append(float(nats(model, new)) / math.log(2))
            model.train()

        def loss(step: int) -> Tensor:
            if step in self.watched:
                watch()
            return nats(model, samples("train", self.batch, self.length, draw))

        train(model.parameters(), loss, steps=self.steps, learning_rate=self.learning_rate, last=0.0)
        watch()
        return found
