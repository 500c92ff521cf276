"""The cost of rectifying features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from evidence.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard_lab.benchmark.capacity import decoded, memory, recall

SHARPNESS = (1.0, 4.0, 16.0, 64.0)


@dataclass(frozen=True)
class NegativeFeatures(Claim):
    """Signed and positive features in states of equal size."""

    about = About(
        title="Positive features lose what the sign tells",
        says="Feature maps that keep weights positive discard the negative part of queries and keys, so that different "
        "keys look alike: reason 4 of the exact-retrieval article.",
        source="The exact-retrieval article, reason 4",
        control="Softmax finds every pair, equal weights one of N. The states compared are of equal size.",
        measures="Untrained recall of random unit values by random unit keys of width 32: signed features (the vectors "
        "themselves, not normalised) against max(x, 0) and elu(x) + 1 in a state of the same bytes; each at the best "
        "of four lengths of the vectors, which a projection could learn.",
    )
    controls = (
        Control(value="softmax", title="softmax: recall", expected=1.0, tolerance=1e-9),
        Control(value="uniform", title="equal weights: pairs x recall", expected=1.0, tolerance=1e-9),
        Control(value="bytes", title="state of signed features / of rectified ones", expected=1.0, tolerance=1e-9),
    )
    findings = (
        Finding(value="relu", title="recall, signed - relu", at_least=0.1),
        Finding(value="elu", title="recall, signed - (elu + 1)", at_least=0.1),
        Finding(value="relu crowded", title="four times the pairs: signed - relu", at_least=0.1),
    )
    plots = (Plot(name="recall", title="Recall over stored pairs", x="pairs", y="share found", log_x=True),)
    tiny: ClassVar[Mapping[str, object]] = {"pairs": 16, "trials": 2}

    signed: str = "linear(feature_map=identity, normalise=False)"
    rectified: str = "linear(feature_map=relu)"
    shifted: str = "linear"
    softmax: str = "softmax"
    uniform: str = "uniform"
    pairs: int = 32
    trials: int = 8

    def observe(self, seed: int) -> Observation:
        """Ask for a quarter, as many and four times the pairs."""
        sizes = (self.pairs // 4, self.pairs, 4 * self.pairs)
        specs = {"signed": self.signed, "relu": self.rectified, "elu + 1": self.shifted}
        recalls = {name: [self.best(spec, pairs, seed) for pairs in sizes] for name, spec in specs.items()}
        state = {
            name: memory(spec, self.pairs, 32, 0).state_nbytes(1, self.pairs, torch.float32)
            for name, spec in specs.items()
        }
        values = {
            "softmax": self.best(self.softmax, self.pairs, seed),
            "uniform": self.best(self.uniform, self.pairs, seed) * self.pairs,
            "bytes": state["signed"] / state["relu"],
            "relu": recalls["signed"][1] - recalls["relu"][1],
            "elu": recalls["signed"][1] - recalls["elu + 1"][1],
            "relu crowded": recalls["signed"][2] - recalls["relu"][2],
        }
        curves: dict[str, Curve] = {name: (sizes, shares) for name, shares in recalls.items()}
        return Observation(values, {"recall": curves})

    def best(self, spec: str, pairs: int, seed: int) -> float:
        """Recall at the best length of the vectors."""
        return max(
            recall(decoded(spec, pairs, sharpness=sharpness, trials=self.trials, seed=seed))[0]
            for sharpness in SHARPNESS
        )
