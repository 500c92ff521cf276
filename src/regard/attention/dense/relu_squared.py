"""The activations of gated attention units in place of a softmax."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Gt
from torch import Tensor

from regard.attention.dense import Dense, inner_products, masked_logits
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, publish, visible_count

MEAN, DEVIATION = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
"""of `laplace`: so that it meets relu(x)^2 in value and slope at x = sqrt(1/2)"""


def relu_squared(logits: Tensor) -> Tensor:
    """relu(x)^2; 0 at -inf."""
    return torch.relu(logits).square()


def laplace(logits: Tensor) -> Tensor:
    """(1 + erf((x - mean) / (deviation sqrt 2))) / 2, between 0 and 1; 0 at -inf."""
    return 0.5 * (1 + torch.erf((logits - MEAN) / (DEVIATION * math.sqrt(2))))


@final
class ReluSquared(Dense):
    """Squared ReLU of each logit, without a softmax: w_ij = f(q_i . k_j / c + b_ij), f = relu(x)^2.

    Public codes divide in three ways, and none is settled: by a constant c (the default), as
    f(q_i . k_j / sqrt(d) + b_ij) / l_i with l_i the keys that query i may see (bert4keras), or by the length of the
    call, which leaks the future: `regard_lab.published.relu_squared_published:ReluSquaredPublished`. A bias b is added
    inside f; where it is -inf the weight is 0 and the key does not count.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys. State: every key and value.

    Raises:
        ConfigError: a constant of another normaliser than `const`.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
        >>> ReluSquared(Heads(count=1, key_dim=4, causal=True), constant=2.0)(q, q, v).values[0, 0, :, 0]
        tensor([ 4.,  8., 12.])

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3; `laplace`: Ma et al. 2022, Mega, Eq. 16.
    """

    default_info = Info(
        title="Squared ReLU",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 3; Ma et al. 2022, Mega, Eq. 16",
        supports=Supports.all(but=("marks",)),
        state="length",
        rows_sum_to_one=False,
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"normaliser": "visible"},
        {"activation": "laplace", "constant": 3.0},
        {"activation": "laplace", "normaliser": "visible"},
    )

    activation: Literal["relu_squared", "laplace"] = "relu_squared"
    """f; `laplace` is Mega's bounded (1 + erf((x - mean) / (deviation sqrt 2))) / 2"""
    normaliser: Literal["const", "visible"] = "const"
    """`const` divides by c inside f, `visible` by sqrt(d) inside f and by l_i outside"""
    constant: Annotated[float, Gt(0)] | None = None
    """c of `const`; None: max_length, or 512 without one"""

    def check_options(self) -> None:
        if self.constant is not None and self.normaliser != "const":
            raise ConfigError(
                f"relu_squared takes a constant with normaliser='const', got constant={self.constant}, "
                f"normaliser={self.normaliser!r}"
            )

    def setup(self) -> None:
        squash, counted = (relu_squared if self.activation == "relu_squared" else laplace), self.normaliser == "visible"
        self.rule = publish(
            f"relu_squared({self.activation}, {counted})",
            Rule(
                lambda q, k: q @ k.mT,
                lambda logits: squash(logits) / visible_count(logits) if counted else squash(logits),
            ),
        )

    @property
    def divisor(self) -> float:
        """The divisor of inner products inside f."""
        if self.normaliser == "visible":
            return self.heads.key_dim**0.5
        return self.constant or (512.0 if self.heads.max_length is None else float(self.heads.max_length))

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average; a divisor inside f divides the queries."""
        q = q.to(accumulation_dtype(q.dtype)) / self.divisor
        return super().average(q, k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """f of every logit, 0 where it is not allowed, over the normaliser."""
        logits = masked_logits(inner_products(q, k) / self.divisor, call)
        allowed = ~logits.isneginf()
        x = torch.where(allowed, logits, 0.0)
        squared = x.clamp(min=0).square()
        # the distribution function of a normal variable
        weights = squared if self.activation == "relu_squared" else torch.special.ndtr((x - MEAN) / DEVIATION)
        weights = torch.where(allowed, weights, 0.0)
        if self.normaliser == "visible":
            weights = weights / allowed.sum(-1, keepdim=True).clamp(min=1)
        return weights @ v.repeat_interleave(self.heads.group, 1)
