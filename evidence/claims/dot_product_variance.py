"""Dot products are divided by sqrt(dim).

Claim: The dot product of two vectors of independent components of variance 1 has variance dim. Such logits push the
softmax to where its gradient vanishes; divided by sqrt(dim) they have variance 1 at any width.
Source: Vaswani et al. 2017, section 3.2.1 and its footnote 4
Control: Queries along one axis: the unscaled logits are that component of the keys, whose variance is 1. Equal keys:
the Jacobian of the softmax is known, its absolute entries sum to 2 (1 - 1/keys).
Measured: Random normal queries and keys in float64; logits read back from the weights that the mechanism gives; their
variance and the absolute Jacobian of the softmax, over dim.
"""

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._growth import exponent
from regard import Heads, build, weights
from regard.core.attention import generator


class DotProductVariance(Claim):
    controls = (
        Control("axis variance", "variance of logits along one axis", 1.0, tolerance=0.1),
        Control("flat gradient", "gradient at equal keys / theory", 1.0, tolerance=1e-9),
    )
    findings = (
        Finding("plain slope", "unscaled: variance ~ dim to the power of", at_least=0.95, at_most=1.05),
        Finding("scaled slope", "scaled: variance ~ dim to the power of", at_least=-0.05, at_most=0.05),
        Finding("scaled variance", "scaled: variance at the largest dim", at_least=0.9, at_most=1.1),
        Finding("plain gradient left", "unscaled: gradient, largest dim / smallest", at_most=0.5),
        Finding("scaled gradient left", "scaled: gradient, largest dim / smallest", at_least=0.9),
    )
    plots = (
        Plot("variance", "Variance of the logits", "dim", "variance", log_x=True, log_y=True),
        Plot("gradient", "Gradient of the softmax", "dim", "sum of |dp/dz| of a row", log_x=True),
    )

    dims: tuple[int, ...] = setting((4, 16, 64, 256, 1024), tiny=(4, 32, 256))
    rows: int = setting(1024, tiny=512)
    """queries, each with keys of its own"""
    keys: int = 16
    scaled: str = "softmax"
    plain: str = "softmax(scale=1.0)"

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "dot_product_variance")
        values: dict[str, float] = {}
        curves: dict[str, dict[str, Curve]] = {"variance": {}, "gradient": {}}
        for label, spec in (("plain", self.plain), ("scaled", self.scaled)):
            variances, gradients = [], []
            for dim in self.dims:
                q = torch.randn(self.rows, 1, 1, dim, generator=draw, dtype=torch.float64)
                k = torch.randn(self.rows, 1, self.keys, dim, generator=draw, dtype=torch.float64)
                p = self.probabilities(spec, q, k)
                variances.append(float(p.log().var(-1).mean()))
                gradients.append(float(jacobian(p).mean()))
            values[f"{label} slope"] = exponent(self.dims, variances)
            values[f"{label} variance"] = variances[-1]
            values[f"{label} gradient left"] = gradients[-1] / gradients[0]
            curves["variance"][spec], curves["gradient"][spec] = (self.dims, variances), (self.dims, gradients)
        k = torch.randn(self.rows, 1, self.keys, 4, generator=draw, dtype=torch.float64)
        axis = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64).expand(self.rows, 1, 1, 4)
        values["axis variance"] = float(self.probabilities(self.plain, axis, k).log().var(-1).mean())
        equal = self.probabilities(self.plain, axis, torch.ones_like(k))
        values["flat gradient"] = float(jacobian(equal).mean()) / (2 * (1 - 1 / self.keys))
        return Observation(values, curves)

    def probabilities(self, spec: str, q: Tensor, k: Tensor) -> Tensor:
        """The weights of each row; their logarithms are the logits up to a constant of the row."""
        heads = Heads(count=1, key_dim=q.shape[-1], value_dim=self.keys)
        return weights(build(spec, heads).to(q.dtype), q, k)[:, 0, 0]


def jacobian(p: Tensor) -> Tensor:
    """The absolute entries dp_i/dz_j = p_i (1[i = j] - p_j) of each row's softmax, summed."""
    return (torch.diag_embed(p) - p[..., :, None] * p[..., None, :]).abs().sum((-1, -2))
