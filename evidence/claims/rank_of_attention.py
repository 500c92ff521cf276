"""Linear attention has a low rank, softmax has not.

Claim: The matrix of linear attention, phi(Q) phi(K)^T divided by its row sums, has at most the rank of its features;
softmax turns Q K^T, of rank at most dim, into a matrix of full rank.
Source: Bhojanapalli et al. 2020, Low-rank bottleneck in multi-head attention; J. Su 2021, on Performers and the rank of
linear attention
Control: Known ranks read in the same way: equal weights give 1, and Q K^T itself gives dim.
Measured: Singular values in float64 of the matrices for random queries and keys that are longer than the features; a
rank counts those above length * 2e-16 of the largest. Causal matrices are triangular with a positive diagonal: the
whole has full rank whatever the features are (in float64 its least singular values may be rounding, so that a few are
not counted), and the bound holds for blocks of later queries and earlier keys.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Heads, build, weights
from regard.core.attention import generator


class RankOfAttention(Claim):
    controls = (
        Control("equal rank", "rank of equal weights", 1.0, tolerance=0.0),
        Control("product rank", "rank of Q K^T / dim", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("linear", "linear: rank / features, worst", at_most=1.0),
        Finding("softmax", "softmax: rank / length", at_least=1.0),
        Finding("causal linear block", "causal linear, block below: rank / features, worst", at_most=1.0),
        Finding("causal softmax block", "causal softmax, block below: rank / side", at_least=1.0),
        Finding("causal linear", "causal linear, whole matrix: rank / features, least", at_least=2.0, states=False),
    )
    revised = Revision(
        "Ranks were judged by themselves, and are judged against the number of features. Findings beside "
        "the claim decided about it too; without them the verdict is the same.",
        (0, 1, 2),
    )
    plots = (
        Plot("bidirectional", "Singular values, bidirectional", "number", "of the largest", log_y=True),
        Plot("causal", "Singular values, causal, block below", "number", "of the largest", log_y=True),
    )

    length: int = setting(64, tiny=32)
    dim: int = 4
    linear: tuple[tuple[str, int], ...] = (
        ("linear", 4),
        ("linear(feature_map=softmax_features)", 4),
        ("linear(feature_map=taylor)", 15),
        ("performer(num_features=8)", 8),
        ("performer(num_features=12, feature_map=relu)", 12),
    )
    """each with the number of its features that are linearly independent: x x^T is symmetric"""
    softmax: str = "softmax"
    sharpness: float = 3.0
    """standard deviation of a component of q and k: softmax of flat logits is close to a matrix of low rank"""

    @torch.no_grad()
    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "rank_of_attention")
        shape = (1, 1, self.length, self.dim)
        q, k = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
        curves: dict[str, dict[str, Curve]] = {"bidirectional": {}, "causal": {}}
        half = self.length // 2
        ranks: dict[str, list[float]] = {"linear": [], "causal linear block": [], "causal linear": []}
        values: dict[str, float] = {}
        for spec, features in (*self.linear, (self.softmax, 0)):
            x, y = (q, k) if features else (self.sharpness * q, self.sharpness * k)
            whole, causal = (self.singular(self.matrix(spec, x, y, causal=causal)) for causal in (False, True))
            block = self.singular(self.matrix(spec, x, y, causal=True)[half:, :half])
            for name, spectrum in (("bidirectional", whole), ("causal", block)):
                shown = spectrum.clamp_min(1e-18).tolist()
                curves[name][spec] = tuple(range(1, len(shown) + 1)), shown
            if not features:
                values["softmax"] = rank(whole) / self.length
                values["causal softmax block"] = rank(block) / half
                continue
            ranks["linear"].append(rank(whole) / features)
            ranks["causal linear block"].append(rank(block) / features)
            ranks["causal linear"].append(rank(causal) / features)
        values |= {name: (min if name == "causal linear" else max)(ratios) for name, ratios in ranks.items()}
        values["equal rank"] = float(rank(self.singular(self.matrix("uniform", q, k, causal=False))))
        product = self.matrix("linear(feature_map=identity, normalise=False)", q, k, causal=False)
        values["product rank"] = rank(self.singular(product)) / self.dim
        return Observation(values, curves)

    def matrix(self, spec: str, q: Tensor, k: Tensor, *, causal: bool) -> Float[Tensor, "queries keys"]:
        heads = Heads(count=1, key_dim=self.dim, value_dim=self.length, causal=causal)
        return weights(build(spec, heads).to(q.dtype).eval(), q, k)[0, 0]

    @staticmethod
    def singular(matrix: Tensor) -> Float[Tensor, "values"]:
        values = torch.linalg.svdvals(matrix)
        return values / values[0]


def rank(singular: Float[Tensor, "values"]) -> int:
    """How many are more than rounding.

    Example:
        >>> rank(torch.tensor([1.0, 1e-3, 1e-17], dtype=torch.float64))
        2
    """
    return int((singular > len(singular) * torch.finfo(singular.dtype).eps).sum())
