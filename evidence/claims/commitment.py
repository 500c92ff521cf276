"""The commitment loss keeps keys at their codes.

Claim: A loss of weight 1e-4 that pulls keys to their codes keeps them from drifting away, and the model is better for
it.
Source: Lingle 2023, Transformer-VQ, section 3; van den Oord et al. 2017, section 3.2
Control: Softmax answers all: the task can be learned, and what is missing is lost by rounding. A commitment loss of
weight 1 halves the distance to codes at the least, whatever that does to the answers: the loss can win. Every training
that is compared is over.
Measured: One layer of attention, trained on fresh sequences for the same steps, at a rate that falls to 0, to say the
values of keys that stood farther back than two blocks, so that only codes remember them: 8 codes in each of two heads
for 8 keys and 8 fillers that carry 4 values, so that no model answers all. Distance: the unweighted commitment loss on
new sequences, the mean square between a key and its code. Keys are normalised, so that their size cannot drift, only
their direction. 1,600 answers of each seed.
"""

from evidence.claims._base import Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._needle import NeedleClaim
from evidence.claims._plateau import FINISHED, change


class Commitment(NeedleClaim):
    controls = (
        Control("softmax", "softmax: accuracy", 1.0, tolerance=0.05),
        Control("pulled", "codes: 1 if weight 1 halves the distance", 1.0, tolerance=0.0, small=False),
        FINISHED,
    )
    findings = (
        Finding("distance", "codes: distance, with / without", at_most=0.95),
        Finding("gain", "codes: accuracy, with - without", at_least=0.02, resolution=1 / 1600),
        Finding("strong", "codes: accuracy, weight 1 - without", at_least=0.02, resolution=1 / 1600, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "Trainings of 200 steps were not over; they have 800 at a rate that falls to 0, on more keys, of which no "
        "codes remember all. Clusters are left out: Routing stands at its ceiling where its trainings are over. The "
        "bounds are those of before.",
        (0, 1, 2, 3, 4),
    )
    plots = (
        Plot("accuracy", "Accuracy over the weight of the loss", "", "share that is right"),
        Plot("distance", "Distance over the weight of the loss", "", "mean square"),
        Plot("loss", "Training", "step", "nats"),
    )
    keys: int = setting(8, tiny=2)
    values: int = setting(4, tiny=2)
    pairs: int = setting(6, tiny=1)
    asked: int = setting(4, tiny=2)

    softmax: str = "softmax"
    codes: str = setting(
        "vector_quantized(num_codes=8, block_size=4)", tiny="vector_quantized(num_codes=4, block_size=2)"
    )
    steps: int = setting(800, tiny=100)
    weight: float = 1e-4
    """of the paper"""
    strong: float = 1.0
    front: int = setting(12, tiny=6)
    gap: int = setting(8, tiny=8)
    dim: int = 16
    batch: int = 24

    def observe(self, seed: int) -> Observation:
        softmax = self.trained(self.softmax, seed)
        weights = {"without": 0.0, "with": self.weight, "weight 1": self.strong}
        found = {label: self.trained(self.codes, seed, weight=weight) for label, weight in weights.items()}
        without, usual, strong = found.values()
        values = {
            "softmax": softmax.accuracy,
            "distance": usual.own / without.own,
            "pulled": float(strong.own <= without.own / 2),
            "gain": usual.accuracy - without.accuracy,
            "strong": strong.accuracy - without.accuracy,
            "unfinished": max(change(one.nats) for one in (without, usual)),
        }
        curves: dict[str, dict[str, Curve]] = {
            "accuracy": {"": (list(found), [one.accuracy for one in found.values()])},
            "distance": {"": (list(found), [one.own for one in found.values()])},
            "loss": {"softmax": softmax.curve} | {label: one.curve for label, one in found.items()},
        }
        return Observation(values, curves)
