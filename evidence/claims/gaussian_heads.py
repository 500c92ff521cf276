"""Heads with quadratic positions learn to convolve.

Claim: With learned centres and widths, heads come to look at one pixel each, at fixed shifts around the query that
together form the grid of a kernel; K^2 heads are what a kernel of K x K takes.
Source: Cordonnier, Loukas, Jaggi 2020, section 4.2 and figures 3 and 4; theorem 1
Control: One head can win: it learns a convolution of 1 x 1. Attention made from the convolution has no error. As a
matrix of channels x taps, the kernel has a best approximation of rank h: h heads lose at least what that leaves. Every
training is over.
Measured: The layer of attention by position alone, with K^2 heads, more, and fewer, trained on fresh random images
against a random convolution of 3 x 3. Mean squared error over the variance of the output; taps at which a head looks
(it is nearest to its centre, at least half of the head's weight on one pixel).
"""

import pkgutil
from typing import Any

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims.convolution_equality import drawn_convolution
from regard.core.attention import generator
from regard_lab.benchmark.fitting import fit

KERNEL = 3
TAPS = KERNEL**2
FEW = 4
"""heads, fewer than taps"""


class GaussianHeads(Claim):
    controls = (
        Control("one tap", "1 x 1, one head: error", 0.0, tolerance=0.01, small=False),
        Control("made", "made from the convolution: error", 0.0, tolerance=1e-6),
        Control("below", "4 heads: what they lose less than rank 4 does", 0.0, tolerance=0.02),
        FINISHED,
    )
    findings = (
        Finding("error", "K^2 heads: error", at_most=0.05),
        Finding("taps", "K^2 heads: share of taps at which a head looks", at_least=0.9),
        Finding("few", "4 heads: error", at_least=0.2),
        Finding("more", "twice K^2 heads: error", at_most=0.05, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("error", "Error over the number of heads", "heads", "share of the variance"),
        Plot("loss", "Training", "step", "share of the variance", log_y=True),
    )

    attention: str = "regard.integrations.convolution:ConvolutionAttention"
    """the class of the layer, as module:Class"""
    learned: bool = True
    """whether centres and widths are; else they stay where they were drawn"""
    channels: tuple[int, int] = setting((3, 16), tiny=(1, 9))
    side: int = setting(8, tiny=5)
    steps: int = setting(1500, tiny=60)
    batch: int = setting(4, tiny=2)
    rate: float = setting(0.03, tiny=0.05)
    images: int = setting(32, tiny=8)
    """to try on"""

    def observe(self, seed: int) -> Observation:
        kernel = drawn_convolution(self.channels, KERNEL, generator(seed, "kernel")).float()
        point = drawn_convolution(self.channels, 1, generator(seed, "point")).float()
        new = self.drawn(self.images, generator(seed, "new"))
        losses: dict[str, Curve] = {}
        errors: dict[int, float] = {}
        changes: list[float] = []
        taps = 0.0
        for heads in (FEW, TAPS, 2 * TAPS):
            layer, losses[f"{heads} heads"] = self.trained(kernel, heads, seed)
            changes.append(change(losses[f"{heads} heads"][1]))
            errors[heads] = lost(layer, kernel, new)
            taps = looked_at(layer) if heads == TAPS else taps
        single, losses["1 x 1, one head"] = self.trained(point, 1, seed)
        changes.append(change(losses["1 x 1, one head"][1]))
        values = {
            "one tap": lost(single, point, new),
            "made": lost(self.layer.from_conv2d(kernel), kernel, new),
            "below": max(0.0, left_by_rank(kernel, FEW) - errors[FEW]),
            "unfinished": max(changes),
            "error": errors[TAPS],
            "taps": taps,
            "few": errors[FEW],
            "more": errors[2 * TAPS],
        }
        curves: dict[str, dict[str, Curve]] = {
            "error": {
                "learned": (list(errors), list(errors.values())),
                "best of that rank": (list(errors), [left_by_rank(kernel, heads) for heads in errors]),
            },
            "loss": losses,
        }
        return Observation(values, curves)

    @property
    def layer(self) -> Any:
        return pkgutil.resolve_name(self.attention)

    def trained(self, convolution: nn.Conv2d, heads: int, seed: int) -> tuple[nn.Module, Curve]:
        layer = self.layer(*self.channels, heads=heads, seed=seed)
        draw = generator(seed, "images")
        if not self.learned:
            layer.alpha.requires_grad_(False)
            layer.centre.requires_grad_(False)
        weights = [weight for weight in layer.parameters() if weight.requires_grad]
        curve = fit(
            weights, lambda: error(layer, convolution, self.drawn(self.batch, draw)), steps=self.steps, rate=self.rate
        )
        return layer, curve

    def drawn(self, count: int, draw: torch.Generator) -> Tensor:
        """Images of normal numbers."""
        return torch.randn(count, self.channels[0], self.side, self.side, generator=draw)


def error(layer: nn.Module, convolution: nn.Conv2d, images: Tensor) -> Tensor:
    """Mean squared difference over the variance of what the convolution gives."""
    with torch.no_grad():
        wanted = convolution(images)
    return (layer(images) - wanted).square().mean() / wanted.var()


@torch.no_grad()
def lost(layer: nn.Module, convolution: nn.Conv2d, images: Tensor) -> float:
    """The error on images, as a number."""
    return float(error(layer, convolution, images))


@torch.no_grad()
def looked_at(layer: nn.Module) -> float:
    """The share of taps that are nearest to the centre of a head with at least half of its weight on one pixel."""
    alpha, centre = layer.get_parameter("alpha"), layer.get_parameter("centre")
    reach = torch.arange(-4.0, 5.0)
    distances = (torch.cartesian_prod(reach, reach) - centre[:, None]).square().sum(-1)
    sharp = (-alpha[:, None] * distances).softmax(-1).amax(-1) >= 0.5
    places = centre.round()
    places = places[sharp & (places.abs().amax(-1) <= KERNEL // 2)]
    return len({tuple(place) for place in places.tolist()}) / TAPS


def left_by_rank(convolution: nn.Conv2d, rank: int) -> float:
    """What the best approximation of that rank leaves of a kernel, as a matrix of pairs of channels x taps."""
    sizes = torch.linalg.svdvals(convolution.weight.detach().flatten(0, 1).flatten(1)).square()
    return float(sizes[rank:].sum() / sizes.sum())
