"""A pair of key and value that stands far away, found by content at counted cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from evidence.claims._base import About, Control, Curve, Finding, Observation, Plot, Revision
from evidence.claims._needle import NeedleClaim


@dataclass(frozen=True)
class RoutingNeedle(NeedleClaim):
    """One layer that is asked for the values of keys which stood farther back than a window of its cost sees."""

    about = About(
        title="Routing finds a needle that a window of its cost cannot",
        says="Tokens that are routed to clusters by their content attend to each other at any distance, at a cost "
        "below that of full attention; a local window of that cost sees only what is near.",
        source="Roy, Saffar, Vaswani, Grangier 2021, sections 1 and 4",
        control="Softmax, which sees every token, answers all at either gap. A window can win: at the gap of the "
        "training, which it sees across, it answers all with the same weights. It is given at least the operations of "
        "routing.",
        measures="Accuracy on new sequences of one layer of attention without positions, trained on fresh sequences of "
        "44 tokens for the same steps, at a rate that falls to 0. Some tokens at the front carry a key and a value, "
        "others fill; at the end tokens with a key alone ask for its value. Asked are sequences of 512 tokens, whose "
        "gap between front and questions is wider than the window. Routing learns its centroids as it trains. Cost: "
        "operations of matrix products in the trained mechanism on these sequences, of all tiles that it walks, "
        "projections apart. 1,600 answers of each seed.",
    )
    controls = (
        Control(value="softmax", title="softmax: accuracy, far", expected=1.0, tolerance=0.05),
        Control(value="near window", title="window: accuracy, gap of the training", expected=1.0, tolerance=0.05),
        Control(value="dearer", title="1 if the window costs at least as much as routing", expected=1.0, tolerance=0.0),
    )
    findings = (
        Finding(value="routing", title="routing: accuracy, far", at_least=0.9, resolution=1 / 1600),
        Finding(value="routing - window", title="accuracy, far, routing - window", at_least=0.3, resolution=1 / 1600),
        Finding(value="excess", title="window: accuracy, far - 1/values", at_most=0.1, resolution=1 / 1600),
        Finding(value="cost", title="operations, routing / softmax", at_most=0.5),
        Finding(
            value="near routing",
            title="routing: accuracy, gap of the training",
            at_least=0.9,
            resolution=1 / 1600,
            states=False,
        ),
    )
    least_seeds = 5
    revised = Revision(
        what="Cost is counted, the window has the cost of routing and is trained where it sees all, sequences that are "
        "asked are longer, fillers are of more kinds and clusters twice as many, and learning rates end at 0, not at "
        "a tenth. The bounds of accuracy are those of before.",
        seen=(0, 1, 2, 3, 4, 900, 901),
    )
    plots = (
        Plot(name="accuracy", title="Accuracy", x="", y="share that is right"),
        Plot(name="operations", title="Operations over those of softmax, far", x="", y="share"),
        Plot(name="loss", title="Training", x="step", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "keys": 2,
        "values": 2,
        "pairs": 2,
        "front": 6,
        "gap": 4,
        "far": 280,
        "asked": 2,
        "fillers": 16,
        "steps": 60,
        "samples": 100,
        "learning_rate": 1e-2,
        "dim": 16,
        "window": "local(window=200)",
        "routing": "routing(num_clusters=16)",
    }

    softmax: str = "softmax"
    window: str = "local(window=256)"
    routing: str = "routing(num_clusters=16)"
    fillers: int = 24
    far: int = 484
    """tokens between needles and questions in the sequences that are asked"""

    def observe(self, seed: int) -> Observation:
        """Train each mechanism."""
        names = ("softmax", "window", "routing")
        found = {name: self.trained(getattr(self, name), seed, far=self.far) for name in names}
        far = {name: one.far for name, one in found.items()}
        cost = {name: one.operations / found["softmax"].operations for name, one in found.items()}
        values = {
            "softmax": far["softmax"],
            "near window": found["window"].accuracy,
            "dearer": float(cost["window"] >= cost["routing"]),
            "routing": far["routing"],
            "routing - window": far["routing"] - far["window"],
            "excess": far["window"] - 1 / self.values,
            "cost": cost["routing"],
            "near routing": found["routing"].accuracy,
        }
        bars: dict[str, Curve] = {name: (["near", "far"], [one.accuracy, one.far]) for name, one in found.items()}
        losses: dict[str, Curve] = {name: one.curve for name, one in found.items()}
        costs: dict[str, Curve] = {"": (list(cost), list(cost.values()))}
        return Observation(values, {"accuracy": bars, "operations": costs, "loss": losses})
