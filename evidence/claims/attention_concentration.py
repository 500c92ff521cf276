"""Linear attention is not sparse enough to retrieve.

Claim: Softmax concentrates on few keys; linear attention spreads over all of them, and that is why it cannot retrieve:
reason 3 of the exact-retrieval article.
Source: The exact-retrieval article, reason 3; Velickovic et al. 2024, softmax is not enough (dispersion)
Control: If no logit exceeds B in size, no softmax weight exceeds e^{2B} / (e^{2B} + n - 1), and logits B, -B, ..., -B
reach that: the measured weight over the bound is 1. Equal weights spread over all n keys.
Measured: Effective keys exp(entropy) of the rows on the same random unit keys; the largest weight that logits of size 5
allow at 64 and 4,096 keys; and recall of softmax, softened until its rows are as flat as those of rectified linear
attention, less the recall of the latter: what sharpness alone does not explain.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from regard import attend
from regard.core.attention import generator
from regard.functional import weights
from regard_lab.benchmark.capacity import decoded, memory, recall

HALVINGS = 20


class AttentionConcentration(Claim):
    controls = (
        Control("tight", "largest softmax weight / bound", 1.0, tolerance=1e-5),
        Control("equal", "equal weights: effective keys / keys", 1.0, tolerance=1e-5),
        Control("matched", "softened softmax: effective keys / linear's", 1.0, tolerance=0.02),
    )
    findings = (
        Finding("spread", "effective keys, linear / softmax", at_least=2.0),
        Finding("kept", "logits of size 5: largest weight at 4,096 / at 64 keys", at_least=0.95),
        Finding("unexplained", "recall at equal entropy, softmax - linear", at_most=0.05),
    )
    plots = (
        Plot("bound", "The largest weight that softmax can give", "keys", "weight", log_x=True),
        Plot("keys", "Effective keys", "", "effective keys"),
        Plot("recall", "Recall", "", "share found"),
    )

    linear: str = "linear(feature_map=relu)"
    softmax: str = "softmax"
    pairs: int = setting(32, tiny=16)
    trials: int = setting(8, tiny=2)
    sharpness: float = 8.0
    lengths: tuple[int, ...] = setting((64, 256, 1024, 4096), tiny=(16, 64, 256))
    bound: float = 5.0

    def observe(self, seed: int) -> Observation:
        linear_keys = self.effective(self.linear, self.sharpness, seed)
        sharp = self.effective(self.softmax, self.sharpness, seed)
        low, high = 1e-6, self.sharpness
        for _ in range(HALVINGS):  # effective keys fall as logits grow
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.effective(self.softmax, middle, seed) > linear_keys else (low, middle)
        soft = self.effective(self.softmax, low, seed)
        largest = [self.largest(length, seed) for length in self.lengths]
        bounds = [self.most(length) for length in self.lengths]
        shares = {
            "softmax": self.share(self.softmax, self.sharpness, seed),
            "softmax, as flat": self.share(self.softmax, low, seed),
            "linear": self.share(self.linear, self.sharpness, seed),
        }
        values = {
            "tight": largest[0] / bounds[0],
            "equal": self.effective("uniform", 1.0, seed) / self.pairs,
            "matched": soft / linear_keys,
            "spread": linear_keys / sharp,
            "kept": largest[-1] / largest[0],
            "unexplained": shares["softmax, as flat"] - shares["linear"],
        }
        bars: dict[str, Curve] = {"": (list(shares), [sharp, soft, linear_keys])}
        curves: dict[str, Mapping[str, Curve]] = {
            "bound": {"measured": (self.lengths, largest), "e^{2B} / (e^{2B} + n - 1)": (self.lengths, bounds)},
            "keys": bars,
            "recall": {"": (list(shares), list(shares.values()))},
        }
        return Observation(values, curves)

    def share(self, spec: str, sharpness: float, seed: int) -> float:
        return recall(decoded(spec, self.pairs, sharpness=sharpness, trials=self.trials, seed=seed))[0]

    def effective(self, spec: str, sharpness: float, seed: int) -> float:
        """Mean exp(entropy) of the rows for keys that are asked as `share` asks them."""
        keys: list[Tensor] = []
        for trial in range(self.trials):
            draw = generator(seed, "concentration", trial)
            x = normalize(torch.randn(1, 1, self.pairs, 32, generator=draw), dim=-1) * sharpness**0.5 * 32**0.25
            keys.append(effective_keys(weights(memory(spec, self.pairs, 32, trial), x, x)))
        return float(torch.cat(keys).mean())

    def most(self, length: int) -> float:
        """The largest weight that is possible while no logit exceeds `bound` in size."""
        return math.exp(2 * self.bound) / (math.exp(2 * self.bound) + length - 1)

    def largest(self, length: int, seed: int) -> float:
        """The weight of a random key of logit `bound` among others of logit -`bound`."""
        at = int(torch.randint(length, (), generator=generator(seed, "largest", length)))
        k = torch.full((1, 1, length, 1), -self.bound, dtype=torch.float64)
        k[:, :, at] = self.bound
        value = torch.zeros_like(k)
        value[:, :, at] = 1
        return float(attend(torch.ones(1, 1, 1, 1, dtype=torch.float64), k, value, self.softmax))


def effective_keys(rows: Tensor) -> Tensor:
    """exp(entropy) of rows of weights; a row that is 0 counts 0.

    Example:
        >>> effective_keys(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])).tolist()
        [2.0, 1.0]
    """
    rows = rows.double()
    entropy = -(rows * rows.clamp_min(1e-300).log()).sum(-1)
    return torch.where(rows.sum(-1) > 0, entropy.exp(), 0.0).flatten()
