"""Blockwise attention divides memory by the blocks.

Claim: A head of n blocks keeps n products of (length / n) x (length / n) in the place of one length x length: its
memory and its operations fall as 1 / n.
Source: Qiu et al. 2020 (BlockBERT), sections 3.1 and 3.2
Control: The weights of plain softmax attention: length^2 numbers per head for the logits and as many for their softmax
are alive at one time, and nothing else is that large.
Measured: The most numbers alive at one time in one forward pass, counted at every allocation, without a clock and
without what the inputs hold. The published form multiplies the blocks and keeps their weights. Ours walks over tiles
and never holds the weights, so that its peak is linear in the length and does not depend on the blocks: there is
nothing left to divide. Exponents by least squares over the number of blocks.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._growth import exponent
from regard import Attention, Heads, build
from regard.core.attention import generator
from regard_lab.benchmark.cost import counted


class BlockwiseMemory(Claim):
    controls = (
        Control("dense peak", "softmax written out: peak / (2 heads length^2)", 1.0, tolerance=0.05),
        Control("difference", "ours - published form, largest difference", 0.0, tolerance=1e-5),
    )
    findings = (
        Finding("weights slope", "published form: peak ~ blocks to the power of", at_most=-0.9),
        Finding("operations slope", "ours: operations ~ blocks to the power of", at_most=-0.9),
        Finding("published growth", "published form: peak at twice the length / once", at_least=3.5),
        Finding("ours growth", "ours: peak at twice the length / once", at_most=2.2, states=False),
        Finding("ours share", "ours / published form: largest peak over blocks", at_most=0.5, states=False),
    )
    revised = Revision(
        "Findings beside the claim decided about it too; without them the verdict is the same.", (0, 1, 2)
    )
    plots = (
        Plot("peak", "Peak", "blocks", "numbers", log_x=True, log_y=True),
        Plot("operations", "Operations", "blocks", "operations", log_x=True, log_y=True),
    )

    spec: str = "blockwise(blocks={blocks}, impl=torch)"
    length: int = setting(2048, tiny=1024)
    blocks: tuple[int, ...] = setting((2, 4, 8, 16), tiny=(2, 4, 8))
    heads: int = 2
    dim: int = 8

    def observe(self, seed: int) -> Observation:
        q, k, v = torch.randn(3, 1, self.heads, self.length, self.dim, generator=generator(seed, "inputs"))
        whole, _ = peak(lambda: (q @ k.mT).softmax(-1) @ v)
        values = {"dense peak": whole / (2 * self.heads * self.length**2), "difference": 0.0}
        ours: list[float] = []
        published: list[float] = []
        operations: list[float] = []
        for blocks in self.blocks:
            mechanism = self.built(blocks, self.length)
            with torch.no_grad():
                difference = mechanism(q, k, v).values - blockwise(q, k, v, blocks)
            values["difference"] = max(values["difference"], float(difference.abs().max()))
            alive, flops = peak(lambda mechanism=mechanism: mechanism(q, k, v))
            ours.append(alive)
            operations.append(flops)
            published.append(peak(lambda blocks=blocks: blockwise(q, k, v, blocks))[0])
        values["weights slope"] = exponent(self.blocks, published)
        values["operations slope"] = exponent(self.blocks, operations)
        values["ours slope"] = exponent(self.blocks, ours)
        values["ours share"] = max(ours) / max(published)
        a, b, c = (x[:, :, : self.length // 2] for x in (q, k, v))
        fewest = self.blocks[0]
        shorter = self.built(fewest, self.length // 2)
        values["ours growth"] = ours[0] / peak(lambda: shorter(a, b, c))[0]
        values["published growth"] = published[0] / peak(lambda: blockwise(a, b, c, fewest))[0]
        curves: dict[str, dict[str, Curve]] = {
            "peak": {
                "published form": (self.blocks, published),
                "ours": (self.blocks, ours),
                "softmax written out": (self.blocks, [whole] * len(self.blocks)),
            },
            "operations": {"ours": (self.blocks, operations)},
        }
        return Observation(values, curves)

    def built(self, blocks: int, length: int) -> Attention:
        heads = Heads(count=self.heads, key_dim=self.dim, max_length=length)
        return build(self.spec.format(blocks=blocks), heads).eval()


def blockwise(q: Tensor, k: Tensor, v: Tensor, blocks: int) -> Tensor:
    """The published form: query block b of head h times key block (b + h) mod n, for all blocks at once."""
    heads, length, dim = q.shape[1:]
    order = (torch.arange(blocks) + torch.arange(heads)[:, None]) % blocks
    q, k, v = (x.unflatten(2, (blocks, length // blocks)) for x in (q, k, v))
    k, v = (x[:, torch.arange(heads)[:, None], order] for x in (k, v))
    return ((q @ k.mT / math.sqrt(dim)).softmax(-1) @ v).flatten(2, 3)


def peak(call: Callable[[], object]) -> tuple[float, float]:
    """The most numbers alive at one time, and operations."""
    with torch.no_grad():
        cost = counted(call)
    return float(cost.peak), float(cost.operations)
