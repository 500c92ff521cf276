"""Convolution as attention: each head looks at one neighbour of a pixel, or learns where to look."""

from typing import Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.catalog import build
from regard.core.attention import Heads, generator
from regard.core.errors import ConfigError, ShapeError
from regard.layer import linear
from regard.position.quadratic import quadratic_products


@final
class ConvolutionAttention(nn.Module):
    """Multi-head attention over the pixels of an image by position alone, of which a convolution is one case.

    Head h gives pixel x_i the average of the pixels x_j of the image with a border of zeros, with weights
    softmax_j(-alpha_h |x_j - x_i - centre_h|^2): a Gaussian around the pixel that lies centre_h = (rows, columns) away.
    The output is W^o of all heads' averages, plus a bias. This is the paper's quadratic encoding with W_q = W_k = 0 and
    W_v = 1: the score is a product of 3 numbers per pixel (D_p = 3), so nothing of size pixels x pixels is kept.

    With one head per kernel tap, centres on the taps and a large alpha each head reads exactly one pixel, and W^o holds
    the taps: `from_conv2d`. All of it stays learnable. Without that start, the centres are drawn and learned, with
    their alpha, like any weight; a centre that leaves the border sees the nearest pixel of it.

    Cost: O(heads pixels^2 channels) time against the convolution's O(taps pixels channels); O(heads pixels channels)
    memory. A softmax keeps every weight above 0: what the other pixels add falls as exp(-alpha).

    Args:
        in_channels, out_channels: of the images.
        heads: of the attention; a kernel of K x K needs K^2.
        border: rows and columns of zeros on each side, which keys include; (K - 1) / 2 for a kernel of K.
        bias: whether the output has one.
        alpha: every head's initial alpha.
        std: standard deviation of the initial centres, in pixels.
        seed: of every initial weight.

    Raises:
        ConfigError: a size below 1, a border below 0.

    Example:
        >>> import torch
        >>> image, convolution = torch.randn(1, 3, 8, 8), torch.nn.Conv2d(3, 5, kernel_size=3, padding=1)
        >>> attention = ConvolutionAttention.from_conv2d(convolution)
        >>> torch.allclose(attention(image), convolution(image), atol=1e-4)
        True

    Source: Cordonnier, Loukas, Jaggi 2020, Theorem 1 and Lemma 2; learned centres: section 4.2.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        heads: int,
        border: tuple[int, int] = (1, 1),
        bias: bool = True,
        alpha: float = 1.0,
        std: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(in_channels, out_channels, heads) < 1 or min(border) < 0:
            raise ConfigError(
                "ConvolutionAttention needs channels and heads of at least 1 and a border of at least 0, "
                f"got {in_channels=}, {out_channels=}, {heads=}, {border=}"
            )
        self.in_channels, self.border = in_channels, border
        # One head of keys and values: all heads see the same places and the same pixels.
        served = Heads(count=heads, key_dim=3, value_dim=in_channels, kv_count=1, seed=seed)
        self.attention = build("softmax(scale=1.0)", served)
        self.alpha = nn.Parameter(torch.full((heads,), float(alpha)))
        self.centre = nn.Parameter(std * torch.randn(heads, 2, generator=generator(seed, "centre")))
        self.output = linear(heads * in_channels, out_channels, bias=bias, draw=generator(seed, "output"))

    @classmethod
    def from_conv2d(cls, convolution: nn.Conv2d, *, alpha: float = 50.0) -> Self:
        """Attention that equals a convolution: out[c, x] = bias_c + sum_h W^o[c, h] . image[x + centre_h].

        Args:
            convolution: odd kernel sides, stride 1, an output as large as the input, zeros around it, dilation 1 and
                groups 1; with or without bias.
            alpha: each neighbour of the one pixel adds about exp(-alpha) of itself; from 45 on that is less than
                float64 rounds.

        Raises:
            ConfigError: something else, or other options; the message lists them all. An alpha that is not positive.
        """
        _check(convolution, alpha)
        rows, columns = convolution.kernel_size
        border = (rows // 2, columns // 2)
        made = cls(
            convolution.in_channels,
            convolution.out_channels,
            heads=rows * columns,
            border=border,
            bias=convolution.bias is not None,
            alpha=alpha,
        ).to(convolution.weight)
        with torch.no_grad():
            made.centre.copy_(_grid(rows, columns, (border[0], border[1]), convolution.weight.device))
            made.output.weight.copy_(convolution.weight.permute(0, 2, 3, 1).flatten(1))
            if convolution.bias is not None:
                made.output.bias.copy_(convolution.bias)
        return made.train(convolution.training)

    def forward(
        self, image: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels height width"]:
        """The convolved image.

        Raises:
            ShapeError: no images, or images with another number of channels.
        """
        if image.ndim != 4 or image.shape[1] != self.in_channels:
            raise ShapeError(
                f"ConvolutionAttention takes (batch, channels={self.in_channels}, height, width), got "
                f"{tuple(image.shape)}"
            )
        batch, _, height, width = image.shape
        rows, columns = self.border
        # Positions need more digits than a half has; distances are what counts, so 0 may be anywhere: in the middle,
        # where squares are smallest.
        wide = torch.promote_types(image.dtype, torch.float32)
        origin = ((height - 1) / 2, (width - 1) / 2)
        here = _grid(height, width, origin, image.device).to(wide)
        there = _grid(height + 2 * rows, width + 2 * columns, (origin[0] + rows, origin[1] + columns), image.device)
        q, k = quadratic_products(self.alpha.to(wide), self.centre.to(wide), here, there.to(wide))
        padded = nn.functional.pad(image, (columns, columns, rows, rows)).to(wide)
        v = padded.flatten(2).mT[:, None]
        values = self.attention(q.expand(batch, -1, -1, -1), k.expand(batch, 1, -1, -1), v).values
        pixels = values.transpose(1, 2).flatten(2).to(image.dtype)
        return self.output(pixels).mT.unflatten(-1, (height, width))

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, border={self.border}"


def _grid(height: int, width: int, origin: tuple[float, float], device: torch.device) -> Float[Tensor, "pixels 2"]:
    """(row, column) of every pixel, row by row, from an origin."""
    rows = torch.arange(height, device=device, dtype=torch.float32) - origin[0]
    columns = torch.arange(width, device=device, dtype=torch.float32) - origin[1]
    return torch.cartesian_prod(rows, columns)


def _check(convolution: nn.Conv2d, alpha: float) -> None:
    """Refuse, all at once, the options under which the output is not one weighted sum of neighbours per pixel."""
    if not isinstance(convolution, nn.Conv2d) or alpha <= 0:
        raise ConfigError(f"from_conv2d takes an nn.Conv2d and a positive alpha, got {convolution} and {alpha=}")
    kernel = tuple(convolution.kernel_size)
    same = tuple(side // 2 for side in kernel)
    padding = {"same": same, "valid": (0, 0)}.get(str(convolution.padding), convolution.padding)
    allowed = {
        "an odd kernel_size": all(side % 2 for side in kernel),
        "stride=1": set(convolution.stride) == {1},
        f"padding={same} or 'same'": padding == same,
        "padding_mode='zeros'": convolution.padding_mode == "zeros",
        "dilation=1": set(convolution.dilation) == {1},
        "groups=1": convolution.groups == 1,
    }
    missing = [option for option, holds in allowed.items() if not holds]
    if missing:
        raise ConfigError(f"from_conv2d takes a convolution with {', '.join(missing)}; got {convolution}")
