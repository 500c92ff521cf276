"""Routing finds a needle that a window of its cost cannot.

Claim: Tokens that are routed to clusters by their content attend to each other at any distance, at a cost below that of
full attention; a local window of that cost sees only what is near.
Source: Roy, Saffar, Vaswani, Grangier 2021, sections 1 and 4
Control: Softmax, which sees every token, answers all at either gap. A window can win: at the gap of the training, which
it sees across, it answers all with the same weights. It is given at least the operations of routing.
Measured: Accuracy on new sequences of one layer of attention without positions, trained on fresh sequences of 44 tokens
for the same steps, at a rate that falls to 0. Some tokens at the front carry a key and a value, others fill; at the end
tokens with a key alone ask for its value. Asked are sequences of 512 tokens, whose gap between front and questions is
wider than the window. Routing learns its centroids as it trains. Cost: operations of matrix products in the trained
mechanism on these sequences, of all tiles that it walks, projections apart. 1,600 answers of each seed.
"""

from evidence.claims._base import Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._needle import NeedleClaim


class RoutingNeedle(NeedleClaim):
    controls = (
        Control("softmax", "softmax: accuracy, far", 1.0, tolerance=0.05),
        Control("near window", "window: accuracy, gap of the training", 1.0, tolerance=0.05),
        Control("dearer", "1 if the window costs at least as much as routing", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("routing", "routing: accuracy, far", at_least=0.9, resolution=1 / 1600),
        Finding("routing - window", "accuracy, far, routing - window", at_least=0.3, resolution=1 / 1600),
        Finding("excess", "window: accuracy, far - 1/values", at_most=0.1, resolution=1 / 1600),
        Finding("cost", "operations, routing / softmax", at_most=0.5),
        Finding(
            "near routing", "routing: accuracy, gap of the training", at_least=0.9, resolution=1 / 1600, states=False
        ),
    )
    least_seeds = 5
    revised = Revision(
        "Cost is counted, the window has the cost of routing and is trained where it sees all, sequences that are "
        "asked are longer, fillers are of more kinds and clusters twice as many, and learning rates end at 0, not at "
        "a tenth. The bounds of accuracy are those of before.",
        (0, 1, 2, 3, 4, 900, 901),
    )
    plots = (
        Plot("accuracy", "Accuracy", "", "share that is right"),
        Plot("operations", "Operations over those of softmax, far", "", "share"),
        Plot("loss", "Training", "step", "nats"),
    )
    keys: int = setting(8, tiny=2)
    values: int = setting(4, tiny=2)
    pairs: int = setting(6, tiny=2)
    front: int = setting(24, tiny=6)
    gap: int = setting(16, tiny=4)
    asked: int = setting(4, tiny=2)
    dim: int = setting(32, tiny=16)
    steps: int = setting(300, tiny=60)
    samples: int = setting(400, tiny=100)

    softmax: str = "softmax"
    window: str = setting("local(window=256)", tiny="local(window=200)")
    routing: str = "routing(num_clusters=16)"
    fillers: int = setting(24, tiny=16)
    far: int = setting(484, tiny=280)
    """tokens between needles and questions in the sequences that are asked"""

    def observe(self, seed: int) -> Observation:
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
