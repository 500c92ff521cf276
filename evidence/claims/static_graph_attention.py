"""Graph attention cannot look a key up.

Claim: The score of graph attention ranks the keys alike for every query, so that it fails on a dictionary lookup that a
score which looks at query and key together solves.
Source: Brody, Alon and Yahav 2022, How attentive are graph attention networks?, sections 3 and 4.1 (of Velickovic et
al. 2018); the score that solves it is that of Bahdanau et al. 2015
Control: The dot product can hold one direction per key, so that it reaches an accuracy of 1. A score that ranks alike
is right for one query of each dictionary: 1/keys, which `uniform` has to give.
Measured: Accuracy of the heaviest key after training on fresh dictionaries: one head on learned projections of one-hot
keys and values, and how often two queries of a dictionary have the same heaviest key.
"""

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Attention, Heads, build
from regard.core.attention import generator
from regard.layer import linear
from regard_lab.benchmark.fitting import fit


class StaticGraphAttention(Claim):
    controls = (
        Control("dot accuracy", "accuracy of the dot product", 1.0, tolerance=0.02),
        Control("flat excess", "uniform: accuracy - 1/keys", 0.0, tolerance=0.03),
    )
    findings = (
        Finding("static excess", "graph: accuracy - 1/keys", at_most=0.05, resolution=0.001),
        Finding("static agreement", "graph: queries with one heaviest key", at_least=0.99),
        Finding("dynamic accuracy", "additive: accuracy", at_least=0.95, resolution=0.001),
    )
    revised = Revision("Rankings that differ by rounding alone counted as different, and count as one now.", (0, 1, 2))
    plots = (
        Plot("accuracy", "Accuracy of the lookup", "", "accuracy"),
        Plot("loss", "Training", "step", "-log weight of the right key"),
    )

    keys: int = setting(16, tiny=4)
    width: int = setting(32, tiny=8)
    steps: int = setting(600, tiny=60)
    batch: int = setting(32, tiny=16)
    rate: float = setting(0.02, tiny=0.05)
    dictionaries: int = setting(500, tiny=200)
    """for the test"""
    static: str = "graph"
    dynamic: str = "additive"
    dot: str = "softmax"
    flat: str = "uniform"

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        named = {"static": self.static, "dynamic": self.dynamic, "dot": self.dot, "flat": self.flat}
        for label, spec in named.items():
            lookup = Lookup(spec, self.keys, self.width, seed)
            draw = generator(seed, "dictionaries")

            def loss(lookup: Lookup = lookup, draw: torch.Generator = draw) -> Tensor:
                return lookup.loss(permutations(self.batch, self.keys, draw))

            if loss().requires_grad:  # a mean has nothing to learn
                losses[spec] = fit(lookup.parameters(), loss, steps=self.steps, rate=self.rate)
            test = permutations(self.dictionaries, self.keys, generator(seed, "test"))
            with torch.no_grad():
                looked = lookup.double()(test)
            heaviest = looked.argmax(-1)
            values[f"{label} accuracy"] = float((heaviest == torch.arange(self.keys)).double().mean())
            values[f"{label} excess"] = values[f"{label} accuracy"] - 1 / self.keys
            values[f"{label} agreement"] = agreement(looked)
        bars = {spec: ([f"{self.keys} keys"], [values[f"{label} accuracy"]]) for label, spec in named.items()}
        return Observation(values, {"accuracy": bars, "loss": losses})


class Lookup(nn.Module):
    """One head over the entries of a dictionary: queries see a key, entries are a key and a value, both one-hot."""

    def __init__(self, spec: str, keys: int, width: int, seed: int) -> None:
        super().__init__()
        self.keys = keys
        self.attention: Attention = build(spec, Heads(count=1, key_dim=width, value_dim=keys, seed=seed))
        self.query = linear(keys, width, bias=False, draw=generator(seed, "query"))
        self.key = linear(2 * keys, width, bias=False, draw=generator(seed, "key"))

    def forward(self, entries: Tensor) -> Tensor:
        """The weights (batch, queries, keys) of entries whose values are `entries` (batch, keys)."""
        codes = torch.eye(self.keys, dtype=self.query.weight.dtype).expand(entries.shape[0], -1, -1)
        k = self.key(torch.cat([codes, nn.functional.one_hot(entries, self.keys).to(codes.dtype)], -1))
        return self.attention(self.query(codes)[:, None], k[:, None], codes[:, None]).values[:, 0]

    def loss(self, entries: Tensor) -> Tensor:
        """-log of the weight on each query's own entry, which carries its value."""
        return -self(entries).diagonal(dim1=1, dim2=2).clamp(min=1e-9).log().mean()


def agreement(looked: Tensor) -> float:
    """The share of queries whose heaviest key is that of the dictionary, ties included.

    The key with the most weight in all is the heaviest of every query if they all rank alike, however flat they are.
    """
    common = looked.sum(1).argmax(-1)
    weight = looked.gather(2, common[:, None, None].expand(-1, looked.shape[1], 1))[..., 0]
    return float((weight >= looked.amax(-1) * (1 - 1e-9)).double().mean())


def permutations(batch: int, keys: int, draw: torch.Generator) -> Tensor:
    """The values of so many dictionaries: each value belongs to one key."""
    return torch.rand(batch, keys, generator=draw).argsort(-1)
