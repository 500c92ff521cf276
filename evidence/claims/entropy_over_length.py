"""A scale of log n keeps the entropy of attention constant.

Claim: The entropy of a softmax grows with the number of keys; with logits times log n / log n_0 it stays about the
same, so that a model works at lengths that it was not trained on.
Source: Su 2021, kexue.fm 8823
Control: At n = n_0 the factor is 1 and nothing changes. The entropy of a softmax over many normal logits of variance
s^2 is log n - s^2 / 2.
Measured: Entropy of rows of normal logits of standard deviation 2 and 1, from the shortest to the longest; growth is
compared with that of `softmax`. Lookup of noisy keys by a trained head, at 8 times the length.
"""

import math

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Attention, Heads, build, weights
from regard.core.attention import generator
from regard.layer import linear
from regard_lab.benchmark.fitting import fit


class EntropyOverLength(Claim):
    controls = (
        Control("same at base", "entropy, scaled - softmax, at n_0", 0.0, tolerance=1e-6),
        Control("theory", "entropy of softmax - theory, longest, sd 1", 0.0, tolerance=0.05),
        Control("learned", "share looked up at the training length, softmax", 1.0, tolerance=0.1),
    )
    findings = (
        Finding("growth 2", "growth / softmax's growth, sd 2: reduced", at_most=0.9),
        Finding("growth 1", "growth / softmax's growth, sd 1: reduced", at_most=0.99),
        Finding("constant 2", "growth / softmax's growth, sd 2: about constant", at_most=0.2),
        Finding("gain", "weight on the right key at 8 times the length: gain", at_least=0.0),
    )
    revised = Revision("The noise of the logits was 0.5, and is 0.3.", (0, 1, 2))
    plots = (
        Plot("entropy 2", "Entropy, logits of sd 2", "keys", "nats", log_x=True),
        Plot("entropy 1", "Entropy, logits of sd 1", "keys", "nats", log_x=True),
        Plot("lookup", "Weight on the right key", "keys", "mean weight", log_x=True),
    )

    lengths: tuple[int, ...] = setting((64, 128, 256, 512, 1024, 2048, 4096), tiny=(64, 512, 2048))
    base_length: int = 512
    rows: int = setting(64, tiny=32)
    steps: int = setting(400, tiny=200)
    trained_length: int = 64
    noise: float = 0.3
    """of a query about its key, per unit of the key"""
    plain: str = "softmax"
    scaled: str = "entropy_scaled"

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        curves: dict[str, dict[str, Curve]] = {plot.name: {} for plot in self.plots}
        scaled = f"{self.scaled}(base_length={self.base_length})" if self.scaled == "entropy_scaled" else self.scaled
        for deviation in (2, 1):
            growth = {}
            for label, spec in (("plain", self.plain), ("scaled", scaled)):
                entropies = [self.entropy(spec, n, deviation, seed) for n in self.lengths]
                curves[f"entropy {deviation}"][spec] = (self.lengths, entropies)
                growth[label] = entropies[-1] - entropies[0]
                values[f"{label} at base"] = self.entropy(spec, self.base_length, deviation, seed)
                if label == "plain":
                    values["theory"] = entropies[-1] - (math.log(self.lengths[-1]) - deviation**2 / 2)
            values["same at base"] = values["scaled at base"] - values["plain at base"]
            values[f"growth {deviation}"] = growth["scaled"] / growth["plain"]
            values[f"constant {deviation}"] = values[f"growth {deviation}"]
        lookup_spec = (
            f"{self.scaled}(base_length={self.trained_length})" if self.scaled == "entropy_scaled" else self.scaled
        )
        lengths = [self.trained_length * times for times in (1, 2, 4, 8)]
        looked = {spec: self.lookup(spec, lengths, seed) for spec in (self.plain, lookup_spec)}
        for spec, shares in looked.items():
            curves["lookup"][spec] = (lengths, shares)
        values["learned"] = looked[self.plain][0]
        values["gain"] = looked[lookup_spec][-1] - looked[self.plain][-1]
        return Observation(values, curves)

    def entropy(self, spec: str, keys: int, deviation: float, seed: int) -> float:
        """The mean entropy of rows of normal logits."""
        draw = generator(seed, "entropy", keys)
        width = 64
        q = torch.randn(1, 1, self.rows, width, generator=draw, dtype=torch.float64)
        # |q| = deviation sqrt(width): q . k / sqrt(width) is normal with that deviation
        q = q / q.norm(dim=-1, keepdim=True) * deviation * width**0.5
        k = torch.randn(1, 1, keys, width, generator=draw, dtype=torch.float64)
        p = weights(build(spec, Heads(count=1, key_dim=width, value_dim=min(keys, 512))).double(), q, k)
        return float(torch.special.entr(p).sum(-1).mean())

    def lookup(self, spec: str, lengths: list[int], seed: int) -> list[float]:
        """Train at the first length; the mean weight on the right key at each."""
        head = Lookup(spec, seed)
        draw = generator(seed, "lookup")
        fit(
            head.parameters(), lambda: -head(32, lengths[0], self.noise, draw).log().mean(), steps=self.steps, rate=0.01
        )
        test = generator(seed, "test")
        with torch.no_grad():
            return [float(head(16, length, self.noise, test).mean()) for length in lengths]


class Lookup(nn.Module):
    """Queries are noisy keys; the head says where the key is."""

    def __init__(self, spec: str, seed: int, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.attention: Attention = build(spec, Heads(count=1, key_dim=width, value_dim=1))
        self.query = linear(width, width, bias=False, draw=generator(seed, "query"))
        self.key = linear(width, width, bias=False, draw=generator(seed, "key"))

    def forward(self, rows: int, keys: int, noise: float, draw: torch.Generator) -> Tensor:
        """The weight on the right key of one query of each row: its value is 1, the others are 0."""
        k = torch.randn(rows, 1, keys, self.width, generator=draw)
        right = torch.randint(keys, (rows,), generator=draw)
        right_key = k[torch.arange(rows), :, right]
        q = right_key + noise * torch.randn(right_key.shape, generator=draw)
        v = nn.functional.one_hot(right, keys).to(k.dtype)[:, None, :, None]
        return self.attention(self.query(q)[:, :, None], self.key(k), v).values.flatten().clamp(min=1e-9)
