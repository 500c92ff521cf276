"""Nadaraya-Watson regression: attention whose score is a kernel of the distance."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Gt
from torch import Tensor, nn

from regard.attention.dense import Dense, distances, reference_softmax
from regard.core import options
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, publish, softmax


def square_distance(q: Tensor, k: Tensor) -> Tensor:
    """|q - k|^2 of every pair, in float64.

    |q|^2 - 2 q.k + |k|^2 cancels where points are far from the origin, and float32 has no digits to spare; of points
    1e19 apart it has no square. What counts is how much farther a key is than the nearest one.
    """
    q, k = q.double(), k.double()
    squares = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    return (squares - 2 * (q @ k.mT)).clamp(min=0)


def parted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 tensor as [rounded, remainder] in another type."""
    rounded = x.to(dtype)
    return torch.cat([rounded, (x - rounded).to(dtype)], -1)


def whole(x: Tensor) -> Tensor:
    """The sum of what `parted` parted, in float64."""
    rounded, remainder = x.double().chunk(2, -1)
    return rounded + remainder


def log_kernel(kernel: str, square: Tensor) -> Tensor:
    """log K(u) from u^2; -inf outside the window of a compact kernel."""
    if kernel == "gaussian":
        return -0.5 * square
    outside = square > 1 if kernel == "box" else square >= 1  # false of NaN, which stays
    height = square.clamp(0, 0) if kernel == "box" else torch.log1p(-square.masked_fill(outside, 0))
    return height.masked_fill(outside, float("-inf"))


def _average(weights: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    return weights.to(v.dtype) @ v


@final
class Gaussian(Dense):
    """Nadaraya-Watson regression: o_i = sum_j K(u_ij) v_j / sum_j K(u_ij), u_ij = |w (q_i - k_j)|.

    The queries are the points x, the keys the x_j and the values the y_j of the sample. Kernels: gaussian exp(-u^2/2),
    box 1[u <= 1], Epanechnikov max(0, 1 - u^2). With a compact kernel an empty window returns exactly 0. The gaussian
    is softmax(w^2 (q.k - |k|^2/2)): scaled dot products with a penalty on the norms of the keys. A bias b multiplies
    K by exp(b).

    Cost: O(queries keys dim) time, with inner products in float64; memory of one chunk of queries x keys. State: every
    key and every value; where w is a matrix, every key times w, in two parts of its width: far from the origin one
    would lose the distances. Behind a state the gradient of a matrix passes these parts, in the dtype of the call, and
    in 16 bits loses there what is small beside the points; without a state it is made in float32 at least.

    Raises:
        ConfigError: a learned bandwidth of a box.

    Example:
        >>> from regard import Heads
        >>> x, y = torch.tensor([[[[0.0], [1.0], [4.0]]]]), torch.tensor([[[[1.0], [3.0], [9.0]]]])
        >>> Gaussian(Heads(count=1, key_dim=1), kernel="box")(x, x, y).values.flatten()
        tensor([2., 2., 9.])

    Source: Nadaraya 1964, Watson 1964.
    """

    default_info = Info(
        title="Nadaraya-Watson",
        source="Nadaraya 1964, Watson 1964",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"bandwidth": "scalar", "inverse_bandwidth": 0.4},
        {"bandwidth": "matrix", "inverse_bandwidth": 0.4},
        {"kernel": "epanechnikov", "inverse_bandwidth": 0.25},
        {"kernel": "box", "inverse_bandwidth": 0.25},
        {"leave_one_out": True, "bandwidth": "scalar", "inverse_bandwidth": 0.5},
    )
    reasons: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("causal", "cross", "state", "prefix"), "leave_one_out=True predicts each point from all others of one sample"
    )

    kernel: Literal["gaussian", "box", "epanechnikov"] = "gaussian"
    """K; `box` is flat, so that queries and keys get no gradient and no bandwidth can be learned"""
    bandwidth: Literal["fixed", "scalar", "matrix"] = "fixed"
    """`fixed`, or learned: `scalar` is one w per query head (`weight`), `matrix` one per head of keys, with
    u_ij = |W (q_i - k_j)|; it starts from `inverse_bandwidth`"""
    inverse_bandwidth: Annotated[float, Gt(0)] = 1.0
    """w; small averages everything, large picks the nearest key"""
    leave_one_out: bool = False
    """the queries are the sample itself, and none sees its own value: what a bandwidth is trained with; load the
    weights into a mechanism without it to predict"""
    weight: nn.Parameter = options.weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Compact kernels have empty windows, and a box is flat; leaving one out is for one sample on itself."""
        kernel = options["kernel"]
        info = replace(
            cls.default_info, rows_sum_to_one=kernel == "gaussian", without_gradient="qk" if kernel == "box" else ""
        )
        if not options["leave_one_out"]:
            return info
        supports = replace(info.supports, causal=False, cross=False, state=False, prefix=False)
        return replace(info, supports=supports, state="none", shares_query_key=True)

    def check_options(self) -> None:
        if self.kernel == "box" and self.bandwidth != "fixed":
            raise ConfigError(
                f"gaussian: a box is flat, so bandwidth={self.bandwidth!r} gets no gradient; use bandwidth='fixed'"
            )

    def setup(self) -> None:
        heads, kernel, leave_one_out = self.heads, self.kernel, self.leave_one_out
        matrix = self.bandwidth == "matrix"
        if self.bandwidth == "scalar":
            self.weight = nn.Parameter(torch.full((heads.count,), float(self.inverse_bandwidth)))
        elif self.bandwidth == "matrix":
            metric = self.inverse_bandwidth * torch.eye(heads.key_dim)
            self.weight = nn.Parameter(metric.repeat(heads.kv_heads, 1, 1))
        times = self.inverse_bandwidth**2 if self.bandwidth == "fixed" else 1.0

        def score(q: Tensor, k: Tensor, distances: Tensor, *weight: Tensor) -> Tensor:
            square = square_distance(whole(q), whole(k)) if matrix else square_distance(q, k)
            square = square * (weight[0].square()[:, None, None] if weight else times)
            logits = log_kernel(kernel, square)
            return logits.masked_fill(distances == 0, float("-inf")) if leave_one_out else logits

        name = f"gaussian({kernel}, {times!r}, {leave_one_out}, {matrix})"
        self.rule = publish(name, Rule(score, softmax, relative=True, average=_average))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Under a matrix in float32 at least, unless a state keeps the keys in their own dtype."""
        if self.bandwidth != "matrix" or call.state is not None:
            return super().attend(q, k, v, call)
        # The gradient of W is a sum of its points times what comes back, in which all that they share cancels.
        return self.average(*self._points(q, k, accumulation_dtype(k.dtype)), v, call)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """W q and W k, where W is a matrix; in two parts, since a rounded point is another point."""
        return self._points(q, k, k.dtype) if self.bandwidth == "matrix" else (q, k)

    def _points(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        metric = self.weight.double()
        with torch.autocast(k.device.type, enabled=False):
            points = q.double() @ metric.repeat_interleave(self.heads.group, 0).mT, k.double() @ metric.mT
        return parted(points[0], dtype), parted(points[1], dtype)

    @property
    def key_width(self) -> int:
        """A matrix gives each number of a key a remainder."""
        return self.heads.key_dim * (2 if self.bandwidth == "matrix" else 1)

    def weights(self) -> list[Tensor]:
        """w, where it is a learned number."""
        return [self.weight] if self.bandwidth == "scalar" else []

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every difference, then the kernel of its length, over the sum of each row."""
        group = self.heads.group
        difference = q[:, :, :, None] - k.repeat_interleave(group, 1)[:, :, None]
        match self.bandwidth:
            case "matrix":
                difference = torch.einsum("hed,bhijd->bhije", self.weight.repeat_interleave(group, 0), difference)
            case "scalar":
                difference = difference * self.weight[:, None, None, None]
            case _:
                difference = difference * self.inverse_bandwidth
        square = (difference * difference).sum(-1)
        if self.leave_one_out:
            square = square.masked_fill(distances(q, k, call) == 0, float("inf"))
        match self.kernel:
            case "gaussian":
                logits = -square / 2
            case "box":
                logits = torch.where(square > 1, float("-inf"), torch.where(square.isnan(), square, 0.0))
            case _:
                height = torch.log(1 - torch.where(square >= 1, 0.0, square))
                logits = torch.where(square >= 1, float("-inf"), height)
        return reference_softmax(logits, v, call)
