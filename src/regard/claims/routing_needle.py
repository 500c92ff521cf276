"""A pair of key and value that stands far away, found by content."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from regard.claims._base import About, Control, Curve, Finding, Observation, Plot
from regard.claims._needle import NeedleClaim


@dataclass(frozen=True)
class RoutingNeedle(NeedleClaim):
    """One layer that is asked for the values of keys which stood farther back than a window sees."""

    about = About(
        title="Routing finds a needle that a window cannot",
        says="Tokens that are routed to clusters by their content attend to each other at any distance, at a cost "
        "below that of full attention; a local window of that cost sees only what is near.",
        source="Roy, Saffar, Vaswani, Grangier 2021, sections 1 and 4",
        control="Softmax, which sees every token, answers all. So does a window that is wide enough: the task is not "
        "beyond windows, only beyond a narrow one.",
        measures="Accuracy on new sequences of one layer of attention, trained on fresh sequences for the same steps. "
        "Some tokens at the front carry a key and a value, others fill; at the end tokens with a key alone ask for its "
        "value. The gap between is wider than the narrow window. Routing has as many clusters as there are keys and "
        "learns its centroids as it trains.",
    )
    controls = (
        Control(value="softmax", title="softmax: accuracy", expected=1.0, tolerance=0.05),
        Control(value="wide", title="a window that is wide enough: accuracy", expected=1.0, tolerance=0.05),
    )
    findings = (
        Finding(value="routing", title="routing: accuracy", at_least=0.9, resolution=1 / 1600),
        Finding(value="routing - narrow", title="accuracy, routing - narrow window", at_least=0.3, resolution=1 / 1600),
        Finding(value="narrow excess", title="narrow window: accuracy - 1/values", at_most=0.1, resolution=1 / 1600),
    )
    least_seeds = 5
    plots = (
        Plot(name="accuracy", title="Accuracy", x="", y="share that is right"),
        Plot(name="loss", title="Training", x="step", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "keys": 2,
        "values": 2,
        "pairs": 2,
        "front": 6,
        "gap": 4,
        "asked": 2,
        "steps": 60,
        "learning_rate": 1e-2,
        "dim": 16,
        "narrow": "local(window=3)",
        "wide": "local(window=16)",
        "routing": "routing(num_clusters=2)",
    }

    softmax: str = "softmax"
    wide: str = "local(window=64)"
    narrow: str = "local(window=8)"
    routing: str = "routing(num_clusters=8)"

    def observe(self, seed: int) -> Observation:
        """Train each mechanism."""
        values: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        names = ("softmax", "wide", "narrow", "routing")
        for name in names:
            found = self.trained(getattr(self, name), seed)
            values[name], losses[name] = found.accuracy, found.curve
        values["routing - narrow"] = values["routing"] - values["narrow"]
        values["narrow excess"] = values["narrow"] - 1 / self.values
        bars: dict[str, Curve] = {name: (["needles"], [values[name]]) for name in names}
        return Observation(values, {"accuracy": bars, "loss": losses})
