"""What the commitment loss does for keys and queries that are rounded to codes or routed to centroids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.claims._base import About, Control, Curve, Finding, Observation, Plot
from regard.claims._needle import Found, NeedleClaim
from regard.claims._plateau import FINISHED, change


@dataclass(frozen=True)
class Commitment(NeedleClaim):
    """The same trainings with the commitment loss of the papers, with a strong one, and without."""

    about = About(
        title="The commitment loss keeps vectors at their codes",
        says="A loss of weight 1e-4 that pulls keys to their codes, or queries and keys to their centroids, keeps them "
        "from drifting away, and the model is better for it.",
        source="Lingle 2023, Transformer-VQ, section 3; Roy et al. 2021, Routing Transformer, section 4; van den Oord "
        "et al. 2017, section 3.2",
        control="Softmax answers all: the task can be learned. A commitment loss of weight 1 halves the distance to "
        "codes and to centroids at the least, whatever that does to the answers: the loss can win. Every training that "
        "is compared is over.",
        measures="One layer of attention, trained on fresh sequences for the same steps to say the values of keys "
        "that stood farther back than two blocks, so that only codes remember them. Distance: the unweighted "
        "commitment loss on new sequences, the mean square between what is rounded and its code or centroid. Both "
        "mechanisms normalise keys, so that their size cannot drift, only their direction.",
    )
    controls = (
        Control(value="softmax", title="softmax: accuracy", expected=1.0, tolerance=0.05),
        Control(
            value="codes pulled",
            title="codes: 1 if weight 1 halves the distance",
            expected=1.0,
            tolerance=0.0,
            small=False,
        ),
        Control(
            value="centroids pulled",
            title="centroids: 1 if weight 1 halves the distance",
            expected=1.0,
            tolerance=0.0,
            small=False,
        ),
        FINISHED,
    )
    findings = (
        Finding(value="codes distance", title="codes: distance, with / without", at_most=0.95),
        Finding(value="codes gain", title="codes: accuracy, with - without", at_least=0.02, resolution=1 / 1600),
        Finding(value="centroids distance", title="centroids: distance, with / without", at_most=0.95),
        Finding(
            value="centroids gain", title="centroids: accuracy, with - without", at_least=0.02, resolution=1 / 1600
        ),
        Finding(
            value="codes strong",
            title="codes: accuracy, weight 1 - without",
            at_least=0.02,
            resolution=1 / 1600,
            states=False,
        ),
        Finding(
            value="centroids strong",
            title="centroids: accuracy, weight 1 - without",
            at_least=0.02,
            resolution=1 / 1600,
            states=False,
        ),
    )
    least_seeds = 5
    plots = (
        Plot(name="accuracy", title="Accuracy over the weight of the loss", x="", y="share that is right"),
        Plot(name="distance", title="Distance over the weight of the loss", x="", y="mean square"),
        Plot(name="loss", title="Training", x="step", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "keys": 2,
        "values": 2,
        "pairs": 1,
        "front": 6,
        "gap": 8,
        "asked": 2,
        "steps": 30,
        "learning_rate": 3e-2,
        "dim": 16,
        "codes": "vector_quantized(num_codes=4, block_size=2)",
        "centroids": "routing(num_clusters=2)",
    }

    softmax: str = "softmax"
    codes: str = "vector_quantized(num_codes=16, block_size=4)"
    centroids: str = "routing(num_clusters=4)"
    steps: int = 200
    weight: float = 1e-4
    """of the papers"""
    strong: float = 1.0
    keys: int = 4
    pairs: int = 3
    front: int = 12
    gap: int = 8
    dim: int = 16

    def observe(self, seed: int) -> Observation:
        """Three weights for each mechanism."""
        softmax = self.trained(self.softmax, seed)
        values = {"softmax": softmax.accuracy}
        compared: list[Found] = []
        curves: dict[str, dict[str, Curve]] = {"accuracy": {}, "distance": {}, "loss": {"softmax": softmax.curve}}
        weights = {"without": 0.0, "with": self.weight, "weight 1": self.strong}
        for name in ("codes", "centroids"):
            found = {label: self.trained(getattr(self, name), seed, weight=w) for label, w in weights.items()}
            without, usual, strong = found.values()
            compared += [without, usual]
            values[f"{name} distance"] = usual.own / without.own
            values[f"{name} pulled"] = float(strong.own <= without.own / 2)
            values[f"{name} gain"] = usual.accuracy - without.accuracy
            values[f"{name} strong"] = strong.accuracy - without.accuracy
            curves["accuracy"][name] = list(found), [one.accuracy for one in found.values()]
            curves["distance"][name] = list(found), [one.own for one in found.values()]
            curves["loss"] |= {f"{name}, {label}": one.curve for label, one in found.items()}
        values["unfinished"] = max(change(one.nats) for one in compared)
        return Observation(values, curves)
