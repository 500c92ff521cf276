"""The activations of gated attention units in place of a softmax."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.dense import Dense, masked_logits, real_keys
from regard.bias import ScoreBias
from regard.engines.dense import Rule, publish, visible_count
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports

ACTIVATIONS = ("relu_squared", "laplace")
NORMALISERS = ("const", "visible", "seq_len")
FORMS = ("exact", "paper")
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

    Public codes divide in three ways, and none is settled: by a constant c (the default), by the length of the call,
    or as f(q_i . k_j / sqrt(d) + b_ij) / l_i with l_i the keys that query i may see (bert4keras). A bias b is added
    inside f; where it is -inf the weight is 0 and the key does not count.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys. State: every key and value.

    Args:
        heads: what to serve.
        activation: f; `laplace` is Mega's bounded (1 + erf((x - mean) / (deviation sqrt 2))) / 2.
        normaliser: `const`, `visible`, or, in form="paper" only, `seq_len`: c is the number of real keys in the call.
            None: the form's own, `const` or `seq_len`.
        constant: c of `const`; None: max_length, or 512 without one.
        form: `exact` is strictly causal. `paper` divides by the length of the call, so that early outputs depend on how
            long the sequence is; it has no state.

    Raises:
        ConfigError: an unknown activation, normaliser or form, `seq_len` in form="exact", another normaliser in
            form="paper", a constant that is not positive or without the normaliser `const`.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
        >>> ReluSquared(Heads(count=1, key_dim=4, causal=True), constant=2.0)(q, q, v).values[0, 0, :, 0]
        tensor([ 4.,  8., 12.])

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3; `laplace`: Ma et al. 2022, Mega, Eq. 16.
    """

    info = Info(
        title="Squared ReLU",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 3; Ma et al. 2022, Mega, Eq. 16",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        state="length",
        rows_sum_to_one=False,
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"normaliser": "visible"},
        {"activation": "laplace", "constant": 3.0},
        {"activation": "laplace", "normaliser": "visible"},
        {"form": "paper"},
    )
    reasons: ClassVar[Mapping[str, str]] = {"state": "form='paper' divides by the length of the whole sequence"}

    @classmethod
    def facts(cls, **options: object) -> Info:
        """The published normaliser looks at the whole sequence."""
        if options.get("form", "exact") != "paper":
            return cls.info
        return replace(cls.info, supports=replace(cls.info.supports, state=False), state="none", leaks=True)

    def __init__(
        self,
        heads: Heads,
        *,
        activation: Literal["relu_squared", "laplace"] = "relu_squared",
        normaliser: Literal["const", "visible", "seq_len"] | None = None,
        constant: float | None = None,
        form: Literal["exact", "paper"] = "exact",
    ) -> None:
        super().__init__(heads, form=form)
        if normaliser is None:
            normaliser = "seq_len" if form == "paper" else "const"
        known = {"activation": ACTIVATIONS, "normaliser": NORMALISERS, "form": FORMS}
        for label, value in (("activation", activation), ("normaliser", normaliser), ("form", form)):
            if value not in known[label]:
                raise ConfigError(f"relu_squared has no {label}={value!r}; it has {', '.join(known[label])}")
        if (normaliser == "seq_len") != (form == "paper"):
            raise ConfigError(
                f"relu_squared: normaliser='seq_len' looks at the whole call, so it is what form='paper' has, and no "
                f"other form; got {normaliser=}, {form=}. Strictly causal: normaliser='const' or 'visible'"
            )
        if constant is not None and (constant <= 0 or normaliser != "const"):
            raise ConfigError(
                f"relu_squared takes a positive constant with normaliser='const', got {constant=}, {normaliser=}"
            )
        self.activation, self.normaliser, self.constant, self.form = activation, normaliser, constant, form
        default = 512.0 if heads.max_length is None else float(heads.max_length)
        self.divisor = {"const": constant or default, "visible": heads.key_dim**0.5, "seq_len": 1.0}[normaliser]
        squash, counted = (relu_squared if activation == "relu_squared" else laplace), normaliser == "visible"
        self.rule = publish(
            f"relu_squared({activation}, {counted})",
            Rule(
                lambda q, k: q @ k.mT,
                lambda logits: squash(logits) / visible_count(logits) if counted else squash(logits),
            ),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """What is divided inside f is divided in the queries."""
        q = q.to(torch.promote_types(q.dtype, torch.float32)) / self.divisor
        if self.normaliser == "seq_len":
            q = q / real_keys(k, key_mask)
        return super().average(q, k, v, key_mask=key_mask, bias=bias)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """f of every logit, 0 where it is not allowed, over the normaliser."""
        del marks
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / self.divisor
        if self.normaliser == "seq_len":
            lengths = k.shape[2] if key_mask is None else key_mask.sum(1).clamp(min=1)[:, None, None, None]
            logits = logits / lengths
        logits = masked_logits(logits, causal=self.heads.causal, key_mask=key_mask, bias=bias)
        allowed = logits > float("-inf")
        x = torch.where(allowed, logits, 0.0)
        squared = torch.where(x > 0, x * x, 0.0)
        # the distribution function of a normal variable
        weights = squared if self.activation == "relu_squared" else torch.special.ndtr((x - MEAN) / DEVIATION)
        weights = torch.where(allowed, weights, 0.0)
        if self.normaliser == "visible":
            weights = weights / allowed.sum(-1, keepdim=True).clamp(min=1)
        return weights @ v
