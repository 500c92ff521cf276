"""A convolution is a special case of self-attention.

Claim: A layer of self-attention with a relative quadratic encoding of positions and one head per tap of the kernel, K^2
of them, can express any convolution with a kernel of K x K.
Source: Cordonnier, Loukas, Jaggi 2020, theorem 1 and lemma 2
Control: The same layer against another random convolution of the same shape: the root mean square of the difference of
two independent outputs is sqrt(2) times that of one.
Measured: Random convolutions of kernels 1 x 1 to 5 x 5 with bias on random images in float64: the largest difference
over the largest output, all pixels, and those whose neighbours lie outside the image (which need keys of zeros around
it). And how the difference falls with the sharpness alpha: theory says exp(-alpha).
"""

import pkgutil

import torch
from torch import nn

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from regard.core.attention import generator


class ConvolutionEquality(Claim):
    controls = (Control("other", "difference from another convolution / sqrt(2)", 1.0, tolerance=0.25),)
    findings = (
        Finding("error", "largest difference, of the largest output", at_most=1e-9),
        Finding("border", "the same, pixels at the border", at_most=1e-9),
        Finding("slope", "log difference over alpha", at_least=-1.1, at_most=-0.9),
    )
    plots = (Plot("sharpness", "Difference over sharpness", "alpha", "difference", log_y=True),)

    attention: str = "regard.integrations.convolution:ConvolutionAttention"
    """the class whose `from_conv2d` is tried, as module:Class"""
    kernels: tuple[int, ...] = setting((1, 3, 5), tiny=(1, 3))
    side: int = setting(12, tiny=7)
    channels: tuple[int, int] = (3, 16)
    alpha: float = 50.0
    alphas: tuple[float, ...] = (5.0, 10.0, 15.0, 20.0, 25.0)

    @torch.no_grad()
    def observe(self, seed: int) -> Observation:
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
