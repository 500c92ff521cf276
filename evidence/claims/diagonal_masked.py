"""A token's own key is not needed.

Claim: The diagonal is the least important part of an attention map: models that are trained without it are no worse.
Source: Shi et al. 2021 (SparseBERT), sections 3 and 4, on encoders; Kitaev et al. 2020 (Reformer), section 2, and
Sukhbaatar et al. 2019, section 2.1, whose decoders leave it out
Control: A key matters, and masking one can be seen: without that of the letter before, which is one as the own key is,
text is worse by more than the bound. Every training is over, and one of twice the steps changes the difference by less
than what lies between the bound and the pilot's.
Measured: Bits per letter of held-out addresses, of decoders of two layers that were trained on the others, on the same
samples within a seed. All layers and heads are masked alike; the first letter then sees no key. What a token is reaches
its own output through the residual stream all the same. Beside the claim: which of the two keys costs more.
"""

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, learned, samples
from evidence.claims._plateau import FINISHED, change, change_with_steps, lasting
from evidence.claims._training import shape
from regard.core.attention import generator
from regard_lab.benchmark.fitting import averages

LOST = 0.05
"""bits of a letter that count as a loss"""


class DiagonalMasked(Claim):
    controls = (
        Control("seen", "1 if masking the letter before is seen", 1.0, tolerance=0.0, small=False),
        lasting(0.15),
        FINISHED,
    )
    findings = (
        Finding("own", "bits, without the own key - with all", at_most=LOST),
        Finding("least", "bits, without the own key - without the one before", at_most=0.0, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "Trainings of 400 steps became 300 after a pilot and before the first run, for their time. That run held "
        "on seeds 0 to 4; its commit is not in the history, so that it is measured again. What twice the steps change "
        "is asked of the mean of the seeds now, not of each. Bounds are as they were.",
        (0, 1, 2, 3, 4, 910),
    )
    plots = (
        Plot("bits", "Held-out text", "keys that nobody sees", "bits per letter"),
        Plot("loss", "Training", "step", "bits per letter"),
    )

    everything: str = "pattern(rule=everything)"
    own: str = "pattern(rule='~window(0)')"
    before: str = "pattern(rule='~window(1) | window(0)')"
    dim: int = setting(32, tiny=16)
    layers: int = setting(2, tiny=1)
    steps: int = setting(300, tiny=20)
    batch: int = setting(16, tiny=4)
    length: int = setting(32, tiny=16)
    rows: int = setting(400, tiny=40)
    """of held-out text"""
    learning_rate: float = 1e-2

    def observe(self, seed: int) -> Observation:
        masks = {"none": self.everything, "own": self.own, "before": self.before}
        found = {name: self.trained(mechanism, self.steps, seed) for name, mechanism in masks.items()}
        bits = {name: one for name, (one, _) in found.items()}

        def difference(steps: int) -> float:
            if steps == self.steps:
                return bits["own"] - bits["none"]
            return self.trained(self.own, steps, seed)[0] - self.trained(self.everything, steps, seed)[0]

        values = {
            "own": bits["own"] - bits["none"],
            "least": bits["own"] - bits["before"],
            "seen": float(bits["before"] - bits["none"] > LOST),
            "lasting": change_with_steps(difference, self.steps),
            "unfinished": max(change(means) for _, means in found.values()),
            **{f"bits without {name}": one for name, one in bits.items()},
        }
        curves = {
            "bits": {"": (list(bits), list(bits.values()))},
            "loss": {name: averages(means) for name, (_, means) in found.items()},
        }
        return Observation(values, curves)

    def trained(self, mechanism: str, steps: int, seed: int) -> tuple[float, list[float]]:
        """Bits per letter of new text after so many steps, and those of every step."""
        config = shape(self, LETTERS, seed, heads=2, attention=mechanism, max_length=self.length)
        new = samples("valid", self.rows, self.length, generator(seed, "valid"))
        return learned(config, new, steps=steps, batch=self.batch, learning_rate=self.learning_rate)
