"""Attention with quadratic positions computes any convolution."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from evidence.claims._base import About, Claim, Control, Finding, Observation, Plot
from regard.core.attention import generator


@dataclass(frozen=True)
class ConvolutionEquality(Claim):
    """The difference between a convolution and the attention layer made from it, inside and at the border."""

    about = About(
        title="A convolution is a special case of self-attention",
        says="A layer of self-attention with a relative quadratic encoding of positions and one head per tap of the "
        "kernel, K^2 of them, can express any convolution with a kernel of K x K.",
        source="Cordonnier, Loukas, Jaggi 2020, theorem 1 and lemma 2",
        control="The same layer against another random convolution of the same shape: the root mean square of the "
        "difference of two independent outputs is sqrt(2) times that of one.",
        measures="Random convolutions of kernels 1 x 1 to 5 x 5 with bias on random images in float64: the largest "
        "difference over the largest output, all pixels, and those whose neighbours lie outside the image (which need "
        "keys of zeros around it). And how the difference falls with the sharpness alpha: theory says exp(-alpha).",
    )
    controls = (
        Control(value="other", title="difference from another convolution / sqrt(2)", expected=1.0, tolerance=0.25),
    )
    findings = (
        Finding(value="error", title="largest difference, of the largest output", at_most=1e-9),
        Finding(value="border", title="the same, pixels at the border", at_most=1e-9),
        Finding(value="slope", title="log difference over alpha", at_least=-1.1, at_most=-0.9),
    )
    plots = (Plot(name="sharpness", title="Difference over sharpness", x="alpha", y="difference", log_y=True),)
    tiny: ClassVar[Mapping[str, object]] = {"kernels": (1, 3), "side": 7}

    attention: str = "regard.integrations.convolution:ConvolutionAttention"
    """the class whose `from_conv2d` is tried, as module:Class"""
    kernels: tuple[int, ...] = (1, 3, 5)
    side: int = 12
    channels: tuple[int, int] = (3, 16)
    alpha: float = 50.0
    alphas: tuple[float, ...] = (5.0, 10.0, 15.0, 20.0, 25.0)

    @torch.no_grad()
    def observe(self, seed: int) -> Observation:
        """Convolve, attend, compare."""
        draw = generator(seed, "convolution_equality")
        made = pkgutil.resolve_name(self.attention).from_conv2d
        image = torch.randn(2, self.channels[0], self.side, self.side, generator=draw, dtype=torch.float64)
        errors, borders, others = [], [], []
        for kernel in self.kernels:
            one, other = (drawn_convolution(self.channels, kernel, draw) for _ in range(2))
            expected, attended, unrelated = one(image), made(one, alpha=self.alpha)(image), other(image)
            wrong = (attended - expected).abs() / expected.abs().max()
            errors.append(float(wrong.max()))
            margin = kernel // 2
            inner = wrong[..., margin : self.side - margin, margin : self.side - margin]
            wrong_inside = torch.zeros_like(wrong)
            wrong_inside[..., margin : self.side - margin, margin : self.side - margin] = inner
            borders.append(float((wrong - wrong_inside).max()))
            others.append(float((attended - unrelated).square().mean().sqrt() / root(expected, unrelated)))
        convolution = drawn_convolution(self.channels, 3, draw)
        expected = convolution(image)
        falls = [float((made(convolution, alpha=alpha)(image) - expected).abs().max()) for alpha in self.alphas]
        at, size = torch.tensor(self.alphas).double(), torch.tensor(falls).double().log()
        at, size = at - at.mean(), size - size.mean()
        values = {
            "error": max(errors),
            "border": max(borders),
            "slope": float((at * size).sum() / at.square().sum()),
            "other": sum(others) / len(others),
        }
        return Observation(values, {"sharpness": {"kernel 3 x 3": (self.alphas, falls)}})


def drawn_convolution(channels: tuple[int, int], kernel: int, draw: torch.Generator) -> nn.Conv2d:
    """Same padding, normal weights and biases."""
    convolution = nn.Conv2d(*channels, kernel, padding=kernel // 2).double()
    with torch.no_grad():
        for weight in convolution.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return convolution


def root(a: torch.Tensor, b: torch.Tensor) -> float:
    """The root of the sum of two mean squares: sqrt(2) times the root mean square of either, on average."""
    return float((a.square().mean() + b.square().mean()).sqrt())
