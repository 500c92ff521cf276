"""Attention is low rank, more so in higher layers.

Claim: Of the singular values of a trained network's attention matrices of 512 tokens, nearly all of the sum is in the
128 largest, and more of it in higher layers than in lower ones: few mixtures of keys are enough.
Source: Wang et al. 2020 (Linformer), section 3 and figure 1
Control: The measure reaches both ends. Attention over tokens that come four times each has no more singular values than
a quarter of the length, and flat attention over random vectors hardly more than one: a share of 1. Copying, softmax of
10 times the identity, has equal ones: a share of 1/4. Linformer with as many mixtures as keys copies, with E = F = I by
hand.
Measured: MiniLM (six layers, twelve heads, distilled to the last layer's attention of a larger network) reading the
bundled addresses, 512 tokens: sum of the 128 largest singular values of softmax over the sum of all, mean over heads
and texts, and the mean of its upper three layers less that of its lower three. Beside it the squares. And the error of
Linformer, fitted to copy random values with a quarter as many mixtures as keys, which for any linear map is 3/4 of
their variance.
"""

from collections.abc import Mapping
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._network import MINILM, UNTRAINED, read_vectors
from regard import Heads, attend, build
from regard.attention.lowrank.linformer import Linformer
from regard.core.attention import generator
from regard_lab.benchmark.fitting import fit

QUARTER = 4
"""the paper keeps 128 of 512"""


class AttentionRankByLayer(Claim):
    controls = (
        Control("constructed", "tokens four times each: share", 1.0, tolerance=1e-3),
        Control("flat", "flat attention: share", 1.0, tolerance=0.02),
        Control("identity", "copying: share", 1 / QUARTER, tolerance=0.01),
        Control("copy whole", "copying, as many mixtures as keys: error", 0.0, tolerance=1e-6),
    )
    findings = (
        Finding("share", "share of the sum in the largest quarter, mean of layers", at_least=0.85),
        Finding("rise", "that share, upper half of the layers - lower half", at_least=0.0),
        Finding("energy", "share of the squares, mean of layers", at_least=0.99, states=False),
        Finding("least", "share of the sum, the head with the least", at_least=0.85, states=False),
        Finding("copy", "copying, a quarter of the mixtures: error", at_least=0.7, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("layers", "Share in the largest quarter", "layer", "share"),
        Plot("spectra", "Cumulative singular values", "number / length", "share of the sum"),
    )

    network: str = setting(MINILM, tiny=UNTRAINED)
    linformer: str = "linformer(rank={rank})"
    length: int = setting(512, tiny=32)
    texts: int = setting(2, tiny=1)
    copied: int = setting(64, tiny=16)
    """keys of the copy"""
    sharpness: float = 10.0
    """logits of the copy: so many times the identity"""
    fit_steps: int = setting(300, tiny=30)

    def observe(self, seed: int) -> Observation:
        layers = self.spectra(seed)
        sums = [top(singular) for singular in layers]
        energies = [top(singular.square()) for singular in layers]
        means = [float(shares.mean()) for shares in sums]
        half = len(means) // 2
        values = {
            "share": fmean(means),
            "rise": fmean(means[-half:]) - fmean(means[:half]),
            "energy": fmean(float(shares.mean()) for shares in energies),
            "least": min(float(shares.min()) for shares in sums),
            **self.known(seed),
            **{name: self.copying(rank, seed) for name, rank in self.ranks.items()},
        }
        numbers = list(range(1, len(means) + 1))
        curves: dict[str, dict[str, Curve]] = {"layers": {}, "spectra": {}}
        curves["layers"]["sum"] = (numbers, means)
        curves["layers"]["squares"] = (numbers, [float(shares.mean()) for shares in energies])
        for at, singular in enumerate(layers):
            grown = (singular.cumsum(-1) / singular.sum(-1, keepdim=True)).mean(0)
            points = torch.linspace(1, len(grown), 17).long()
            curves["spectra"][f"layer {at + 1}"] = (
                [float(point) / len(grown) for point in points],
                grown[points - 1].tolist(),
            )
        return Observation(values, curves)

    @property
    def ranks(self) -> Mapping[str, int]:
        return {"copy whole": self.copied, "copy": self.copied // QUARTER}

    def spectra(self, seed: int) -> list[Float[Tensor, "matrices values"]]:
        """Singular values of every layer's softmax, those of all heads and texts."""
        read = list(read_vectors(self.network, texts=self.texts, length=self.length, seed=seed))
        return [
            torch.cat([torch.linalg.svdvals(one.logits.softmax(-1)[0].float()).double() for one in layer])
            for layer in zip(*read, strict=True)
        ]

    def known(self, seed: int) -> dict[str, float]:
        """Shares of matrices whose singular values are known."""
        draw = generator(seed, "known spectra")
        q, k = torch.randn(2, self.length, QUARTER, generator=draw, dtype=torch.float64)
        few = torch.randn(2, self.length // QUARTER, 32, generator=draw, dtype=torch.float64)
        logits = {
            "constructed": (few[0] @ few[1].mT).repeat_interleave(QUARTER, 0).repeat_interleave(QUARTER, 1),
            "flat": 0.05 * q @ k.mT,
            "identity": self.sharpness * torch.eye(self.length, dtype=torch.float64),
        }
        return {name: float(top(torch.linalg.svdvals(x.softmax(-1))[None])) for name, x in logits.items()}

    def copying(self, rank: int, seed: int) -> float:
        """The error of Linformer in place of softmax on q = k = I, over the variance of the values."""
        size = self.copied
        heads = Heads(count=1, key_dim=size, value_dim=16, max_length=size, seed=seed)
        mechanism = build(self.linformer.format(rank=rank), heads)
        logits = self.sharpness * size**0.5
        x = (logits**0.5 * torch.eye(size))[None, None].expand(8, -1, -1, -1)

        def error(draw: torch.Generator) -> Tensor:
            v = torch.randn(8, 1, size, 16, generator=draw)
            return (mechanism(x, x, v).values - attend(x, x, v)).square().mean()

        if rank == size:
            assert isinstance(mechanism, Linformer)
            with torch.no_grad():
                for weight in mechanism.parameters():
                    weight.copy_(torch.eye(size))
        else:
            draw = generator(seed, "copies")
            fit(mechanism.parameters(), lambda: error(draw), steps=self.fit_steps, rate=0.02)
        with torch.no_grad():
            return float(error(generator(seed, "new copies")))


def top(singular: Float[Tensor, "matrices values"]) -> Float[Tensor, "matrices"]:
    """The largest quarter over all.

    Example:
        >>> top(torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])).tolist()
        [0.25, 1.0]
    """
    return singular[:, : singular.shape[1] // QUARTER].sum(-1) / singular.sum(-1)
