"""Attention that equals a convolution, borders included; its learnable form; and the case of width 1."""

import math

import pytest
import torch
from torch import nn

from regard.core.errors import ConfigError, ShapeError
from regard.integrations.convolution import ConvolutionAttention


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conv2d(*sizes, seed=0, **options) -> nn.Conv2d:
    """Weights from a generator of their own."""
    made = nn.Conv2d(*sizes, **{"padding": "same", **options}).double()
    with torch.no_grad():
        for at, weight in enumerate(made.parameters()):
            weight.copy_(randn(*weight.shape, seed=10 + seed + at))
    return made


@pytest.mark.parametrize(
    ("kernel", "options", "size"),
    [
        (3, {}, (7, 9)),
        (3, {"bias": False}, (7, 9)),
        (5, {"padding": 2}, (6, 8)),
        ((3, 5), {"padding": (1, 2)}, (5, 11)),
        ((1, 7), {}, (4, 9)),
        (1, {"padding": "valid"}, (5, 4)),
        (5, {}, (2, 1)),
        (3, {}, (1, 1)),
    ],
)
def test_it_equals_the_convolution_borders_included(kernel, options, size):
    convolution, image = conv2d(3, 4, kernel, **options), randn(2, 3, *size)
    attention = ConvolutionAttention.from_conv2d(convolution)
    wanted = convolution(image)
    assert (attention(image) - wanted).abs().max() < 1e-9 * wanted.abs().max()
    rows, columns = convolution.kernel_size
    assert attention.attention.heads.count == rows * columns, "one head per tap"
    assert (attention.output.bias is None) == (convolution.bias is None)


def test_the_error_falls_as_exp_of_minus_alpha():
    convolution, image = conv2d(2, 2, 3), randn(1, 2, 12, 12)
    wanted = convolution(image)
    errors = [
        (ConvolutionAttention.from_conv2d(convolution, alpha=alpha)(image) - wanted).abs().max().item()
        for alpha in (5, 10, 20, 40)
    ]
    assert errors[0] > 1e-3, "the control: a small alpha is no convolution"
    for error, alpha in zip(errors[1:3], (10, 20), strict=True):
        assert math.log(errors[0] / error) == pytest.approx(alpha - 5, abs=0.1)
    assert errors[3] < 1e-13


def test_without_the_border_the_edge_would_be_wrong():
    """Softmax has to look somewhere: with no zeros to look at, it renormalises onto the nearest pixel."""
    convolution, image = conv2d(2, 2, 3), randn(1, 2, 6, 6)
    attention = ConvolutionAttention.from_conv2d(convolution)
    attention.border = (0, 0)
    error = (attention(image) - convolution(image)).abs().amax((0, 1))
    assert error[1:-1, 1:-1].max() < 1e-9
    assert error[0].max() > 0.1


def test_a_gaussian_head_equals_the_loop_over_pixels():
    height, width, heads = 4, 5, 3
    attention = ConvolutionAttention(2, 3, heads=heads, border=(1, 2), alpha=0.4, std=1.5, seed=3).double()
    with torch.no_grad():
        attention.alpha.add_(randn(heads).abs())
    image = randn(2, 2, height, width)
    got = attention(image)
    padded = nn.functional.pad(image, (2, 2, 1, 1))
    for y in range(height):
        for x in range(width):
            found = []
            for h in range(heads):
                weights = torch.zeros(height + 2, width + 4, dtype=torch.float64)
                for r in range(height + 2):
                    for s in range(width + 4):
                        offset = torch.tensor([r - 1 - y, s - 2 - x]) - attention.centre[h].detach()
                        weights[r, s] = (-attention.alpha[h] * offset.square().sum()).exp()
                found.append((padded * weights / weights.sum()).sum((2, 3)))
            wanted = torch.cat(found, 1) @ attention.output.weight.T + attention.output.bias
            assert (got[:, :, y, x] - wanted).abs().max() < 1e-10


def test_it_stays_in_the_dtype_of_the_convolution():
    convolution = conv2d(2, 3, 3).bfloat16()
    image = randn(1, 2, 6, 7).bfloat16()
    got = ConvolutionAttention.from_conv2d(convolution)(image)
    exact = convolution.double()(image.double())
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"stride": 2, "padding": 1}, "stride=1"),
        ({"padding": 0}, r"padding=\(1, 1\) or 'same'"),
        ({"padding": 2}, r"padding=\(1, 1\) or 'same'"),
        ({"padding_mode": "reflect", "padding": 1}, "padding_mode='zeros'"),
        ({"dilation": 2}, "dilation=1"),
        ({"groups": 2}, "groups=1"),
        ({"groups": 2, "stride": 2, "padding": 0}, r"stride=1, padding=\(1, 1\) or 'same', groups=1"),
    ],
)
def test_other_convolutions_are_refused_with_every_reason(options, allowed):
    with pytest.raises(ConfigError, match=f"takes a convolution with {allowed}; got Conv2d"):
        ConvolutionAttention.from_conv2d(conv2d(2, 4, 3, **options))


def test_even_kernels_other_modules_and_sizes_are_refused():
    with pytest.raises(ConfigError, match="an odd kernel_size"):
        ConvolutionAttention.from_conv2d(nn.Conv2d(1, 1, (3, 4), padding=1))
    for module in (nn.Conv1d(1, 1, 3), nn.ConvTranspose2d(1, 1, 3)):
        with pytest.raises(ConfigError, match=r"takes an nn\.Conv2d"):
            ConvolutionAttention.from_conv2d(module)
    with pytest.raises(ConfigError, match=r"a positive alpha, got .* alpha=-1"):
        ConvolutionAttention.from_conv2d(conv2d(1, 1, 3), alpha=-1)
    with pytest.raises(ConfigError, match="heads=0"):
        ConvolutionAttention(1, 1, heads=0)
    with pytest.raises(ShapeError, match=r"channels=2, height, width\), got \(1, 3, 4, 4\)"):
        ConvolutionAttention(2, 1, heads=1)(randn(1, 3, 4, 4))
