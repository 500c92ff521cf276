"""Quantised keys lose what rounding them loses, and nothing else.

Claim: Attention over quantised keys in linear time is dense attention over quantised keys, so the number of codes alone
sets its error: none where keys lie in as many clusters as there are codes.
Source: Lingle 2023, Transformer-VQ, section 3
Control: With a code at every key the error is 0. With a single code all keys are alike, so the error is that of equal
weights.
Measured: Relative error of the output against softmax of the same normalised queries and keys, in float64, untrained.
Keys stand exactly at as many centres as there are clusters, or are normal; queries and values are normal. Codes are
those of Lloyd's iterations from keys that lie far apart. The linear form walks blocks of 16 positions, causal; the
dense one is written out.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from regard import Heads, build
from regard.attention.routed.vector_quantized import VectorQuantized, normalised
from regard.core.attention import generator


class QuantizedKeys(Claim):
    controls = (
        Control("every key", "random keys, a code at each: error", 0.0, tolerance=1e-6),
        Control("one code", "one code: error / that of equal weights", 1.0, tolerance=1e-6),
    )
    findings = (
        Finding("clustered", "clusters, as many codes: error", at_most=1e-6),
        Finding("form", "linear form against dense softmax over codes: difference", at_most=1e-6),
        Finding("half", "clusters, half as many codes: error", at_least=0.05),
        Finding("random", "random keys, as many codes: error", at_least=0.05),
        Finding("fall", "random keys: error, least / most codes", at_least=1.5),
    )
    plots = (
        Plot("codes", "Error over the number of codes", "codes", "error", log_x=True, log_y=True),
        Plot("width", "Clusters that have a width", "width", "error"),
    )

    spec: str = "vector_quantized(num_codes={codes}, block_size=16)"
    length: int = setting(512, tiny=64)
    dim: int = 16
    clusters: int = setting(32, tiny=8)
    codes: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), tiny=(1, 4, 8, 48, 64))
    """one code first, a code for each key last"""
    spread: float = 0.0
    """standard deviation of keys about their centre, whose own is 1"""
    widths: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.8)
    """those of a plot"""

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "quantised keys")
        q, v, loose = (torch.randn(self.length, self.dim, generator=draw, dtype=torch.float64) for _ in range(3))
        centres = torch.randn(self.clusters, self.dim, generator=draw, dtype=torch.float64)
        at = torch.arange(self.length) % self.clusters
        around = torch.randn(self.length, self.dim, generator=draw, dtype=torch.float64)
        kinds = {"clustered": centres[at] + self.spread * around, "random": loose}
        errors = {kind: [self.error(q, k, v, codes) for codes in self.codes] for kind, k in kinds.items()}
        by_codes = {kind: dict(zip(self.codes, found, strict=True)) for kind, found in errors.items()}
        wide = [self.error(q, centres[at] + width * around, v, self.clusters) for width in self.widths]
        values = {
            "every key": by_codes["random"][self.length],
            "one code": by_codes["random"][1] / relative(v.mean(0).expand_as(v), exact(q, loose, v)),
            "clustered": by_codes["clustered"][self.clusters],
            "half": by_codes["clustered"][self.clusters // 2],
            "random": by_codes["random"][self.clusters],
            "fall": by_codes["random"][1] / by_codes["random"][self.codes[-2]],
            "form": self.difference(q, loose, v),
        }
        curves: dict[str, Curve] = {kind: (self.codes, found) for kind, found in errors.items()}
        return Observation(values, {"codes": curves, "width": {f"{self.clusters} codes": (self.widths, wide)}})

    def error(self, q: Tensor, k: Tensor, v: Tensor, codes: int) -> float:
        mechanism = self.mechanism(codes, causal=False)
        place(mechanism, kmeans(normalised(k), codes))
        return relative(attended(mechanism, q, k, v), exact(q, k, v))

    def difference(self, q: Tensor, k: Tensor, v: Tensor) -> float:
        """How far the blocks are from dense causal softmax over the same codes, which is written out."""
        mechanism, book = self.mechanism(self.clusters, causal=True), kmeans(normalised(k), self.clusters)
        place(mechanism, book)
        rounded = book[torch.cdist(normalised(k), book).argmin(1)]
        logits = normalised(q) @ rounded.mT
        later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        return relative(attended(mechanism, q, k, v), logits.masked_fill(later, float("-inf")).softmax(-1) @ v)

    def mechanism(self, codes: int, *, causal: bool) -> Any:
        heads = Heads(count=1, key_dim=self.dim, causal=causal, max_length=self.length)
        return build(self.spec.format(codes=codes), heads).double().eval()


def place(mechanism: Any, book: Float[Tensor, "codes dim"]) -> None:
    """Give a mechanism these codes, if it has any."""
    if isinstance(mechanism, VectorQuantized):
        mechanism.code_sum.copy_(book)


@torch.no_grad()
def attended(mechanism: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mechanism(q[None, None], k[None, None], v[None, None]).values[0, 0]


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (normalised(q) @ normalised(k).mT).softmax(-1) @ v


def relative(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found - expected).norm() / expected.norm())


def kmeans(x: Float[Tensor, "rows dim"], codes: int, rounds: int = 20) -> Float[Tensor, "codes dim"]:
    """Lloyd's iterations, from rows of which each is the farthest from those before it."""
    first, apart = [0], torch.cdist(x, x[:1])[:, 0]
    for _ in range(codes - 1):
        first.append(int(apart.argmax()))
        apart = torch.minimum(apart, torch.cdist(x, x[first[-1:]])[:, 0])
    book = x[first]
    for _ in range(rounds):
        member = one_hot(torch.cdist(x, book).argmin(1), codes).to(x.dtype)
        count = member.sum(0)[:, None]
        book = torch.where(count > 0, member.mT @ x / count.clamp(min=1), book)
    return book
