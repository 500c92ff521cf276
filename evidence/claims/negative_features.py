"""Positive features lose what the sign tells.

Claim: Feature maps that keep weights positive discard the negative part of queries and keys, so that different keys
look alike: reason 4 of the exact-retrieval article.
Source: The exact-retrieval article, reason 4
Control: Softmax finds every pair, equal weights one of N. The states compared are of equal size.
Measured: Untrained recall of random unit values by random unit keys of width 32: signed features (the vectors
themselves, not normalised) against max(x, 0) and elu(x) + 1 in a state of the same bytes; each at the best of four
lengths of the vectors, which a projection could learn.
"""

import torch

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from regard_lab.benchmark.capacity import decoded, memory, recall

SHARPNESS = (1.0, 4.0, 16.0, 64.0)


class NegativeFeatures(Claim):
    controls = (
        Control("softmax", "softmax: recall", 1.0, tolerance=1e-9),
        Control("uniform", "equal weights: pairs x recall", 1.0, tolerance=1e-9),
        Control("bytes", "state of signed features / of rectified ones", 1.0, tolerance=1e-9),
    )
    findings = (
        Finding("relu", "recall, signed - relu", at_least=0.1),
        Finding("elu", "recall, signed - (elu + 1)", at_least=0.1),
        Finding("relu crowded", "four times the pairs: signed - relu", at_least=0.1),
    )
    plots = (Plot("recall", "Recall over stored pairs", "pairs", "share found", log_x=True),)

    signed: str = "linear(feature_map=identity, normalise=False)"
    rectified: str = "linear(feature_map=relu)"
    shifted: str = "linear"
    softmax: str = "softmax"
    uniform: str = "uniform"
    pairs: int = setting(32, tiny=16)
    trials: int = setting(8, tiny=2)

    def observe(self, seed: int) -> Observation:
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
        return max(
            recall(decoded(spec, pairs, sharpness=sharpness, trials=self.trials, seed=seed))[0]
            for sharpness in SHARPNESS
        )
