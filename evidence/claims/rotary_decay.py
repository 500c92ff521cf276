"""Rotary positions decay with distance.

Claim: The score of a rotated query and key depends on their distance alone, and a bound on it decays as they move
apart: tokens far from each other should have less to do with each other.
Source: Su et al. 2021 (RoFormer), sections 3.3 and 3.4.3, figure 2
Control: Keys independent of their query: rotations keep their length, so that the mean square of the score is dim at
every distance. (Such pairs do not decay, whatever the bound does.)
Measured: Random normal queries in float64. The mean over pairs of the bound of section 3.4.3, and the mean score of a
key that equals its query, both far away over near; whether any score exceeds its bound; whether a shift of both
positions changes any score. Single pairs need not decay: the plot shows one.
"""

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from regard import Heads
from regard.core.attention import generator
from regard.position import build_position


class RotaryDecay(Claim):
    controls = (Control("independent", "mean square score of independent pairs / dim, far away", 1.0, tolerance=0.25),)
    findings = (
        Finding("bound", "mean bound, far / at distance 1", at_most=0.5),
        Finding("matching", "mean score of equal pairs, far / at distance 0", at_most=0.5),
        Finding("exceeds", "largest score over its bound", at_most=1.0),
        Finding("shift", "largest change of a score by a shift, of |q||k|", at_most=1e-9),
    )
    revised = Revision("The control on independent pairs tolerated 0.15, and tolerates 0.25.", (0, 1, 2))
    plots = (
        Plot("decay", "Decay with distance", "distance", "of the value at distance 0"),
        Plot("pair", "One pair", "distance", "score / (|q| |k|)"),
    )

    position: str = "rotary"
    dim: int = 64
    length: int = setting(512, tiny=256)
    """distances from 0 to length - 1; the upper half of them is far"""
    pairs: int = setting(1000, tiny=400)

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "rotary_decay")
        scheme = build_position(self.position, Heads(count=1, key_dim=self.dim), self.dim)
        q, other = torch.randn(2, self.pairs, self.dim, generator=draw, dtype=torch.float64)

        def scores(keys: Tensor, shift: int = 0) -> Tensor:
            """(pairs, distances)."""
            at = torch.arange(self.length - 1, -1, -1) + shift
            q_at = torch.tensor([self.length - 1 + shift])
            spread_keys = keys[:, None, None].expand(-1, 1, self.length, -1)
            turned_q, turned_k = scheme.transform(q[:, None, None], spread_keys, q_at, at)
            return (turned_q @ turned_k.mT)[:, 0, 0]

        equal, independent = scores(q), scores(other)
        size = q.norm(dim=1, keepdim=True) * other.norm(dim=1, keepdim=True)
        bounds = bound(q, other, self.length)
        far = slice(self.length // 2, None)
        matching, limit = equal.mean(0), bounds.mean(0)
        values = {
            "independent": float(independent[:, far].square().mean()) / self.dim,
            "bound": float(limit[far].mean() / limit[1]),
            "matching": float(matching[far].mean() / matching[0]),
            "exceeds": float((independent.abs() / bounds)[:, 1:].max()),
            "shift": float(((independent - scores(other, 1000)).abs() / size).max()),
        }
        rms = independent.square().mean(0).sqrt()
        distances = list(range(0, self.length, max(1, self.length // 128)))

        def curve(x: Tensor) -> tuple[list[int], list[float]]:
            return distances, x[distances].tolist()

        curves = {
            "decay": {
                "bound": curve(limit / limit[1]),
                "equal pairs, mean": curve(matching / matching[0]),
                "independent pairs, root mean square": curve(rms / rms[0]),
            },
            "pair": {"first pair": curve(independent[0] / size[0])},
        }
        return Observation(values, curves)


def bound(q: Tensor, k: Tensor, length: int) -> Tensor:
    """max_c |h_{c+1} - h_c| sum_j |S_j|, S_j = sum_{c < j} e^{i r theta_c}, h_c = q_c k_c*, h_{d/2} = 0.

    Channels c and c + dim/2 make the complex q_c; by Abel's summation by parts it
    bounds |q R k| <= |sum_c h_c e^{i r theta_c}|.
    """
    half = q.shape[1] // 2
    h = torch.complex(q[:, :half], q[:, half:]) * torch.complex(k[:, :half], k[:, half:]).conj()
    steps = torch.diff(torch.cat([h, h.new_zeros(len(h), 1)], 1), dim=1).abs().amax(1)
    theta = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * theta
    partial = torch.polar(torch.ones_like(angle), angle).cumsum(1).abs().sum(1)
    return steps[:, None] * partial
