"""Attention that equals a convolution, borders included; its learnable form; and the case of width 1."""

import math

import pytest
import torch
from torch import nn

from regard.core.errors import ConfigError, ShapeError
from regard.integrations.convolution import ConvolutionAttention
from regard.models.parts import Mlp


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


def test_the_score_needs_three_numbers_per_pixel_and_one_head_of_keys():
    """The theorem's D_p >= 3: (row, column, squared norm)."""
    heads = ConvolutionAttention.from_conv2d(conv2d(2, 2, 3)).attention.heads
    assert (heads.key_dim, heads.kv_heads, heads.value_width) == (3, 1, 2)


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


def test_gradients_of_centre_alpha_and_image():
    attention = ConvolutionAttention(1, 1, heads=2, alpha=0.5, seed=1).double()
    image = randn(1, 1, 3, 3).requires_grad_()
    names = ("alpha", "centre", "output.weight")
    leaves = [attention.get_parameter(name).detach().requires_grad_() for name in names]

    def call(image, *weights):
        return torch.func.functional_call(attention, dict(zip(names, weights, strict=True)), (image,))

    assert torch.autograd.gradcheck(call, (image, *leaves))


def test_a_head_learns_where_to_look():
    """From a wide Gaussian around its own pixel, one head finds the pixel that a convolution with one tap reads.

    A head that looks elsewhere compares independent pixels: its loss is about 2, and the best constant's about 1.
    """
    image = randn(2, 1, 6, 6)
    wanted = torch.roll(nn.functional.pad(image, (1, 1, 1, 1)), (1, -1), (2, 3))[:, :, 1:-1, 1:-1]
    attention = ConvolutionAttention(1, 1, heads=1, alpha=0.3, std=0.1, bias=False, seed=2).double()
    nn.init.ones_(attention.output.weight)
    train = torch.optim.Adam(attention.parameters(), lr=0.1)
    losses = []
    for _ in range(200):
        train.zero_grad()
        loss = (attention(image) - wanted).square().mean()
        loss.backward()
        train.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 < 0.5 < losses[0]
    assert attention.centre[0].tolist() == pytest.approx([-1, 1], abs=0.05)
    assert attention.alpha.item() > 2


def test_it_stays_in_the_dtype_of_the_convolution():
    convolution = conv2d(2, 3, 3).bfloat16()
    image = randn(1, 2, 6, 7).bfloat16()
    got = ConvolutionAttention.from_conv2d(convolution)(image)
    exact = convolution.double()(image.double())
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_weights_come_from_the_seed_and_states_are_saved():
    first, again, other = (ConvolutionAttention(2, 3, heads=4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.centre, again.centre)
    assert not torch.equal(first.centre, other.centre)
    other.load_state_dict(first.state_dict())
    image = randn(1, 2, 4, 4).float()
    assert torch.equal(other(image), first(image))


def test_a_copy_does_not_follow_the_convolution():
    convolution, image = conv2d(1, 1, 3), randn(1, 1, 4, 4)
    attention = ConvolutionAttention.from_conv2d(convolution)
    before = attention(image)
    nn.init.zeros_(convolution.weight)
    assert torch.equal(attention(image), before)


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


def test_a_feed_forward_layer_is_two_convolutions_of_width_one():
    mlp = Mlp(6, 10, "relu", bias=True, draw=torch.Generator().manual_seed(0)).double()
    up, down = nn.Conv1d(6, 10, 1).double(), nn.Conv1d(10, 6, 1).double()
    for convolution, layer in ((up, mlp.up), (down, mlp.down)):
        nn.init.normal_(layer.bias)
        convolution.load_state_dict({"weight": layer.weight[..., None], "bias": layer.bias})
    x = randn(2, 9, 6)
    assert (mlp(x) - down(up(x.mT).relu()).mT).abs().max() < 1e-12
