"""Random and global keys make attention mix fast.

Claim: A window alone is a poor graph: its diameter grows with the length, and its second eigenvalue is close to the
first. Random edges make paths logarithmic and open a spectral gap, so that information mixes fast. One global token
makes every pair two hops.
Source: Zaheer et al. 2020, section 2 (Watts and Strogatz 1998 for the graphs); the two hops: Ainslie et al. 2020
Control: Graphs with known values: full attention has diameter 1 and second eigenvalue 0; a ring of n, each seeing
itself and its neighbours, has diameter n // 2 and second eigenvalue (1 + 2 cos(2 pi / n)) / 3; a window of 8 has
diameter ceil((n - 1) / 8).
Measured: The graph is read off the mechanism: a pair is an edge where its effective weight is above 0. Hops from every
position to every other, exactly, as powers of the graph; the eigenvalues of the walk that attends evenly to what it may
see, D^-1 A. Windows beside random or global keys are so much smaller that neither graph has more edges than the window
alone.
"""

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Heads, build, weights
from regard.core.attention import generator


class GraphMixing(Claim):
    controls = (
        Control("full diameter", "full attention: diameter", 1, tolerance=0),
        Control("full second", "full attention: second eigenvalue", 0, tolerance=1e-6),
        Control("ring hops", "ring: diameter - n // 2", 0, tolerance=0),
        Control("ring error", "ring: second eigenvalue - theory", 0, tolerance=1e-9),
        Control("narrow hops", "window of 8: diameter - ceil((n - 1) / 8)", 0, tolerance=0),
    )
    findings = (
        Finding("random density", "window and random: edges / window alone", at_most=1.0),
        Finding("global density", "window and global: edges / window alone", at_most=1.0),
        Finding("random hops", "window and random: diameter / log2 n", at_most=1.0),
        Finding("random growth", "window and random: diameter at n / at n/4", at_most=2.0),
        Finding("window growth", "window alone: diameter at n / at n/4", at_least=3.5),
        Finding("random gain", "spectral gap, window and random / window alone", at_least=10.0),
        Finding("global gain", "spectral gap, window and global / window alone", at_least=10.0),
        Finding("global diameter", "window and global: diameter", at_most=2.0),
    )
    revised = Revision(
        "The graphs and one control were replaced before the record. Whether numbers had been seen is not recorded.",
        (0, 1, 2),
    )
    plots = (
        Plot("reached", "Pairs within so many hops", "hops", "share of all pairs", log_x=True),
        Plot("second", "Second eigenvalue", "", "absolute value"),
    )

    length: int = setting(1024, tiny=256)
    window: str = "local(window=12)"
    random: str = "bigbird(block_size=4, num_random=3, num_global=0, last_global=False)"
    globally: str = "longformer(window=8, num_global=3)"
    full: str = "softmax"

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        curves: dict[str, dict[str, Curve]] = {"reached": {}, "second": {}}
        graphs = {
            "full": self.full,
            "ring": f"pattern(rule='window(1) | strided({self.length - 1})')",
            "narrow": "local(window=8)",
            "window": self.window,
            "random": self.random,
            "global": self.globally,
        }
        for name, spec in graphs.items():
            graph = edges(spec, self.length, seed)
            (diameter, shares), second = reached(graph), second_eigenvalue(graph)
            values |= {f"{name} diameter": float(diameter), f"{name} second": second, f"{name} gap": 1 - second}
            values[f"{name} edges"] = float(graph.sum())
            curves["reached"][name] = ([2**at for at in range(len(shares))], shares)
            curves["second"][name] = ([f"n = {self.length}"], [second])
        for name, spec in (("window", self.window), ("random", self.random)):
            shorter, _ = reached(edges(spec, self.length // 4, seed))
            values[f"{name} growth"] = values[f"{name} diameter"] / shorter
        for name in ("random", "global"):
            values[f"{name} density"] = values[f"{name} edges"] / values["window edges"]
            values[f"{name} gain"] = values[f"{name} gap"] / values["window gap"]
        values["random hops"] = values["random diameter"] / math.log2(self.length)
        values["ring hops"] = values["ring diameter"] - self.length // 2
        values["ring error"] = values["ring second"] - (1 + 2 * math.cos(2 * math.pi / self.length)) / 3
        values["narrow hops"] = values["narrow diameter"] + (1 - self.length) // 8
        return Observation(values, curves)


def edges(spec: str, length: int, seed: int) -> Bool[Tensor, "queries keys"]:
    q, k = torch.randn(2, 1, 1, length, 8, generator=generator(seed, "queries and keys"))
    mechanism = build(spec, Heads(count=1, key_dim=8, value_dim=256, max_length=length, seed=seed))
    return weights(mechanism, q, k)[0, 0] > 0


def reached(graph: Bool[Tensor, "queries keys"]) -> tuple[int, list[float]]:
    """The diameter, and the share of pairs within 1, 2, 4, 8, ... hops, up to all of them.

    Hops are layers: after h of them a query knows of the keys that h edges lead to, which is the power h of the graph
    with an edge from each node to itself. Powers are squared until they are full; then the last one that is not grows
    by ever smaller powers to the last hop at which a pair is missing.

    Raises:
        ValueError: some pair is never reached.
    """
    powers = [(graph | torch.eye(len(graph), dtype=torch.bool)).float()]
    while not powers[-1].all():
        powers.append((powers[-1] @ powers[-1] > 0).float())
        if torch.equal(*powers[-2:]):
            raise ValueError(f"{powers[-1].mean():.3f} of the pairs is all that is ever reached")
    shares = [float(power.double().mean()) for power in powers]
    if len(powers) == 1:
        return 1, shares
    lacking, hops = powers[-2], 2 ** (len(powers) - 2)
    for at in range(len(powers) - 3, -1, -1):
        further = (lacking @ powers[at] > 0).float()
        if not further.all():
            lacking, hops = further, hops + 2**at
    return hops + 1, shares


def second_eigenvalue(graph: Bool[Tensor, "queries keys"]) -> float:
    """The second largest absolute eigenvalue of the walk that attends evenly, D^-1 A."""
    walk = graph.double() / graph.double().sum(1, keepdim=True)
    return float(torch.linalg.eigvals(walk).abs().sort(descending=True).values[1])
