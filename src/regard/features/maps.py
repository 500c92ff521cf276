"""Feature maps phi of kernel attention, weight(i, j) = phi(q_i) . phi(k_j)

A map is called like a function: `feature_map("positive_random")(x, projection)`. Engines call `scaled` and `pull`
instead, chunk by chunk, and select a map by its name, so that no callable crosses an operator's boundary.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.compiling import known_within
from regard.core.errors import ConfigError, nearest
from regard.core.precision import accumulation_dtype
from regard.core.transforms import forward_mode

LOG2E = math.log2(math.e)


class FeatureMap(ABC):
    """One map from vectors to features. Stateless; projections are passed in."""

    name: ClassVar[str]
    random: ClassVar[bool] = False
    """takes a projection (rows, dim); otherwise None"""
    nonnegative: ClassVar[bool] = True
    """every feature is at least 0"""
    positive: ClassVar[bool] = False
    """phi(x) . phi(y) > 0 for every x and y, up to underflow"""
    log_scale: ClassVar[bool] = False
    """`scaled` takes a factor out of each vector"""
    per_row: ClassVar[int] = 1
    """features that a random map makes of each row of the projection"""

    def count(self, dim: int, rows: int = 0) -> int:
        """Features of a vector of `dim` numbers; `rows`: of the projection, where there is one."""
        return self.per_row * rows if self.random else dim

    def __call__(
        self, x: Float[Tensor, "*vectors dim"], projection: Float[Tensor, "*heads rows dim"] | None = None
    ) -> Float[Tensor, "*vectors features"]:
        """The features themselves, differentiable."""
        features, log_scale = self.scaled(x, projection)
        return features if log_scale is None else features * log_scale[..., None].exp()

    @abstractmethod
    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features in a range that cannot overflow, and the log of the factor taken out of each vector (or None).

        The log is a constant to autograd: the features carry the whole derivative.
        """

    def lift(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(y, log) with phi(x) = phi(y) exp(log) and a feature of y that is not tiny; log None: of every vector 0.

        Averages are the same for phi(y), whose products with the features of keys do not underflow. What y is depends
        on each vector alone, and it is x itself unless all features of x are tiny. To autograd log is a constant.
        """
        return x, None

    @abstractmethod
    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        """The gradient of `x` from that of its scaled features. May overwrite `gradient`."""


class _EluPlusOne(FeatureMap):
    """elu(x) + 1: x + 1 above 0, exp(x) below (Katharopoulos et al. 2020, Eq. 7)."""

    name = "elu_plus_one"
    positive = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        # exp itself, not elu + 1: adding 1 to -1 + exp(x) loses every digit of a small feature
        # and the derivative of exactly one of the two is 1 at 0
        return torch.threshold(x, 0, 0).add_((x * LOG2E).clamp_max_(0).exp2_()), None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return features.clamp_max(1).mul_(gradient)

    def lift(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return _lifted(x, below=16.0, to=4.0)


class _Relu(FeatureMap):
    """max(x, 0). A query and a key without a common positive channel have weight 0."""

    name = "relu"

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        return x.relu(), None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return gradient * (features > 0)

    def lift(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        top = x.detach().amax(-1)
        if known_within(top, 2.0**-20):
            return x, None
        tiny = (top > 0) & (top < 2.0**-20)
        power = torch.frexp(top).exponent.clamp(min=-126).masked_fill(~tiny, 0)  # of 2, which rounds nothing
        times = torch.ldexp(torch.ones_like(top, dtype=accumulation_dtype(x.dtype)), -power)
        return (x * times[..., None]).to(x.dtype), power * math.log(2)


class _Sigmoid(FeatureMap):
    """1 / (1 + exp(-x))."""

    name = "sigmoid"
    positive = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        return x.sigmoid(), None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return (1 - features).mul_(features).mul_(gradient)

    def lift(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        tail = 2 - math.log(torch.finfo(x.dtype).eps)  # below, it is exp(x) to the last digit
        return _lifted(x, below=tail, to=tail)


class _Identity(FeatureMap):
    """x: signed, so weights may cancel. Also serves features that the caller has computed."""

    name = "identity"
    nonnegative = False

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        return x, None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return gradient


class _SoftmaxFeatures(FeatureMap):
    """softmax over the channels of each vector, and nothing below `smallest`: disjoint peaks still have a product."""

    name = "softmax_features"
    positive = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        return x.softmax(-1).clamp_min(smallest(x.dtype)), None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        inner = (gradient * features).sum(-1, keepdim=True)
        return (gradient - inner).mul_(features)


class _Taylor(FeatureMap):
    """[1, x, vec(x x^T) / sqrt 2]: phi(q) . phi(k) = 1 + q.k + (q.k)^2 / 2 >= 1/2, the second-order series of exp."""

    name = "taylor"
    nonnegative = False
    positive = True

    def count(self, dim: int, rows: int = 0) -> int:
        return 1 + dim + dim * dim

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        square = (x[..., None] * (x * 0.5**0.5)[..., None, :]).flatten(-2)
        return torch.cat([torch.ones_like(x[..., :1]), x, square], -1), None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        dim = x.shape[-1]
        square = gradient[..., 1 + dim :].unflatten(-1, (dim, dim))
        both = ((square + square.mT) @ x[..., None])[..., 0]
        return gradient[..., 1 : 1 + dim] + both * 0.5**0.5


class _PositiveRandom(FeatureMap):
    """rows^(-1/2) exp(W x - |x|^2 / 2): E[phi(q) . phi(k)] = exp(q . k) (Choromanski et al. 2021, Eq. 7)."""

    name = "positive_random"
    random = positive = log_scale = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, Tensor]:
        return _exponentials(_projected(x * LOG2E, projection), _half_square(x))

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        slope = gradient.mul_(features)
        return _pulled(slope, projection) - x * slope.sum(-1, keepdim=True)


class _HyperbolicRandom(FeatureMap):
    """(2 rows)^(-1/2) [exp(W x), exp(-W x)] exp(-|x|^2 / 2) (Choromanski et al. 2021, Lemma 1): less variance."""

    name = "hyperbolic_random"
    random = positive = log_scale = True
    per_row = 2

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, Tensor]:
        y = _projected(x * LOG2E, projection)
        return _exponentials(torch.cat([y, -y], -1), _half_square(x))

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        slope = gradient.mul_(features)
        plus, minus = slope.chunk(2, -1)
        return _pulled(plus - minus, projection) - x * slope.sum(-1, keepdim=True)


class _FourierRandom(FeatureMap):
    """rows^(-1/2) [sin W x, cos W x]: E[phi(q) . phi(k)] = exp(-|q - k|^2 / 2) (Rahimi and Recht 2007); signed."""

    name = "fourier_random"
    random = True
    nonnegative = False
    per_row = 2

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, Tensor | None]:
        y = _projected(x, projection)
        return torch.cat([y.sin(), y.cos()], -1) * y.shape[-1] ** -0.5, None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        sin, cos = features.chunk(2, -1)
        of_sin, of_cos = gradient.chunk(2, -1)
        return _pulled(of_sin * cos - of_cos * sin, projection)


class _Trigonometric(_FourierRandom):
    """rows^(-1/2) exp(+|x|^2 / 2) [sin W x, cos W x] (Rahimi and Recht 2007): unbiased for exp(q . k), but signed."""

    name = "trigonometric"
    log_scale = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, Tensor]:
        y = _projected(x, projection)
        features, half = torch.cat([y.sin(), y.cos()], -1), _half_square(x)
        if half.requires_grad or forward_mode():
            features = features * (half - half.detach()).exp()[..., None]
        return features, half.detach() - math.log(y.shape[-1]) / 2

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        total = (gradient * features).sum(-1, keepdim=True)
        return super().pull(gradient, features, x, projection) + x * total


class _ReluRandom(FeatureMap):
    """ReLU(W x) + 0.001: the generalised kernel of Choromanski et al. 2021, section 4; no estimate of softmax."""

    name = "relu_random"
    random = positive = True
    floor: ClassVar[float] = 1e-3

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        return _projected(x, projection).relu_() + self.floor, None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return _pulled(gradient * (features > self.floor), projection)


class _ArcCosineRandom(FeatureMap):
    """rows^(-1/2) max(W x, 0): E[phi(q) . phi(k)] = |q| |k| (sin t + (pi - t) cos t) / (2 pi), t the angle.

    Cho and Saul 2009. Random rows may leave a query and a key without a common feature: weight 0.
    """

    name = "arc_cosine_random"
    random = True

    def scaled(self, x: Tensor, projection: Tensor | None) -> tuple[Tensor, None]:
        y = _projected(x, projection)
        return y.relu_() * y.shape[-1] ** -0.5, None

    def pull(self, gradient: Tensor, features: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
        return _pulled(gradient * (features > 0), projection) * features.shape[-1] ** -0.5


def smallest(dtype: torch.dtype) -> float:
    """A little above the root of the smallest normal number: products of two such features do not underflow.

    Example:
        >>> f"{smallest(torch.float32):.0e}"
        '4e-18'
    """
    return torch.finfo(dtype).tiny ** 0.46


def _lifted(x: Tensor, *, below: float, to: float) -> tuple[Tensor, Tensor | None]:
    """A map that is exp below -to: the largest number of each vector to -to, where it lies below -below."""
    if known_within(x, -below):  # a look at every number costs half of the largest of each vector
        return x, None
    top = x.detach().amax(-1)
    if known_within(top, -below):
        return x, None
    shift = (top + to).clamp_min(torch.finfo(x.dtype).min).masked_fill(top >= -below, 0)
    return x - shift[..., None], shift


def _projected(x: Tensor, projection: Tensor | None) -> Tensor:
    assert projection is not None, "a random feature map takes a projection"
    return x @ projection.mT


def _pulled(slope: Tensor, projection: Tensor | None) -> Tensor:
    assert projection is not None
    return slope @ projection


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1) / 2


def _exponentials(y: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """count^(-1/2) exp(y / LOG2E - half), divided by the largest of each vector; consumes y, which is in base 2.

    Nothing falls below `smallest`, so that a query always has a positive total.
    """
    top = y.detach().amax(-1)
    learned = half.requires_grad or forward_mode()
    shift = (half - half.detach()) * LOG2E + top if learned else top  # with the derivative of half
    features = y.sub_(shift[..., None]).clamp_min_(math.log2(smallest(y.dtype))).exp2_()
    return features, top / LOG2E - half.detach() - math.log(y.shape[-1]) / 2


FEATURE_MAPS: dict[str, FeatureMap] = {
    map_.name: map_
    for map_ in (
        _EluPlusOne(),
        _Relu(),
        _Sigmoid(),
        _Identity(),
        _SoftmaxFeatures(),
        _Taylor(),
        _PositiveRandom(),
        _HyperbolicRandom(),
        _Trigonometric(),
        _ReluRandom(),
        _FourierRandom(),
        _ArcCosineRandom(),
    )
}


def feature_map(name: str) -> FeatureMap:
    """The map of that name.

    Raises:
        ConfigError: there is none.

    Example:
        >>> feature_map("taylor").count(8)
        73
    """
    if name not in FEATURE_MAPS:
        raise ConfigError(f"unknown feature map {name!r}: {nearest(name, FEATURE_MAPS)}")
    return FEATURE_MAPS[name]
