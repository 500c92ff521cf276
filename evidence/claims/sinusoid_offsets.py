"""Sinusoidal codes make offsets linear.

Claim: For any fixed offset k the code of position i + k is a linear function of the code of position i, the same for
all i, which should make it easy to attend by relative position.
Source: Vaswani et al. 2017, section 3.5
Control: Codes of independent normal numbers: nothing is to be found in them, and least squares on N positions with D
channels errs on others by sqrt(1 + D / (N - D - 1)) of the codes' size, by theory.
Measured: Least squares in float64 on half of the positions, drawn at random, for random offsets; the root mean square
error on the other half over that of the codes. Also how much the product of two codes depends on more than their
distance. That a map exists says nothing about whether a model uses it.
"""

import math

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from regard import Heads
from regard.core.attention import generator
from regard.position import build_position


class SinusoidOffsets(Claim):
    controls = (Control("noise error", "error on random codes / theory", 1.0, tolerance=0.1),)
    findings = (
        Finding("error", "largest error of the map, of the codes' size", at_most=1e-9),
        Finding("product", "what products of codes depend on besides the distance", at_most=1e-9),
    )
    plots = (Plot("error", "Error of the best linear map", "offset", "error", log_y=True),)

    position: str = "sinusoidal"
    dim: int = 64
    length: int = 512
    offsets: int = setting(12, tiny=3)
    """how many, drawn from 1 to length / 4"""

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "sinusoid_offsets")
        scheme = build_position(self.position, Heads(count=1, key_dim=self.dim, max_length=self.length), self.dim)
        with torch.no_grad():
            codes = scheme.double().embed(
                torch.zeros(1, self.length, self.dim, dtype=torch.float64), torch.arange(self.length)
            )[0]
        noise = torch.randn(self.length, self.dim, generator=draw, dtype=torch.float64)
        drawn = 1 + torch.randperm(self.length // 4, generator=draw)[: self.offsets].sort().values
        offsets = [int(x) for x in drawn]
        errors = [map_error(codes, offset, draw) for offset in offsets]
        noises = [map_error(noise, offset, draw) for offset in offsets]
        fitted = [(self.length - offset) // 2 for offset in offsets]
        theory = [math.sqrt(1 + self.dim / (rows - self.dim - 1)) for rows in fitted]
        values = {"error": max(errors), "noise error": sum(noises) / sum(theory), "product": spread(codes)}
        return Observation(values, {"error": {self.position: (offsets, errors), "random codes": (offsets, noises)}})


def map_error(codes: Tensor, offset: int, draw: torch.Generator) -> float:
    """Root mean square error of the fitted map on positions that it was not fitted on, over that of the codes."""
    rows = torch.randperm(len(codes) - offset, generator=draw)
    half = len(rows) // 2
    seen, new = rows[:half], rows[half:]
    linear_map = torch.linalg.lstsq(codes[seen], codes[seen + offset], driver="gelsd").solution
    wrong = codes[new] @ linear_map - codes[new + offset]
    return float(wrong.square().mean().sqrt() / codes.square().mean().sqrt())


def spread(codes: Tensor) -> float:
    """The largest difference between products of codes that are equally far apart, over the size of a code."""
    products = codes @ codes.T
    diagonals = [products.diagonal(offset) for offset in range(len(codes) - 1)]
    return max(float(x.max() - x.min()) for x in diagonals) / float(products.diagonal().mean())
