"""Sigmoid attention: every pair by itself, without a softmax."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.dense import Dense, masked_logits, real_keys
from regard.bias import ScoreBias
from regard.engines.dense import Rule, publish, visible_count
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports

FORMS = ("exact", "paper")


@final
class Sigmoid(Dense):
    """Sigmoid of each logit: w_ij = sigmoid(scale q_i . k_j + c - log n_i), not normalised; scale = 1/sqrt(d).

    n_i counts the keys that query i may see, where the paper's bias is b = -log n of the whole sequence: a causal row
    then depends on the past alone. With equal keys of logit 0 and c = 0 a row sums to n / (n + 1). A weight depends on
    the other keys through their number only. A bias is added inside the sigmoid; where it is -inf the key does not
    count.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys. State: every key and value.

    Args:
        heads: what to serve.
        scale: of the inner products; None: 1/sqrt(key_dim).
        offset: c, where it starts if it is learned.
        learned: whether c is a weight, `shift`, of each query head.
        form: `exact` is strictly causal. `paper` takes for n_i the number of real keys in the call, so that its early
            outputs depend on how long the sequence is; it differs in causal use only, and has no state.

    Raises:
        ConfigError: a scale that is not positive, or an unknown `form`.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 3, 8), torch.ones(1, 1, 3, 8)
        >>> Sigmoid(Heads(count=1, key_dim=8))(q, q, v).values[0, 0, 0, 0]
        tensor(0.7500)

    Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, Eqs. 2 and 3.
    """

    info = Info(
        title="Sigmoid",
        source="Ramapuram et al. 2024, Sigmoid Self-Attention, Eqs. 2 and 3",
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
        {"offset": 0.5, "learned": True},
        {"scale": 0.7, "offset": -0.5},
        {"form": "paper"},
    )
    reasons: ClassVar[Mapping[str, str]] = {"state": "form='paper' counts the keys of the whole sequence"}

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
        scale: float | None = None,
        offset: float = 0.0,
        learned: bool = False,
        form: Literal["exact", "paper"] = "exact",
    ) -> None:
        super().__init__(heads, form=form)
        if scale is not None and scale <= 0:
            raise ConfigError(f"sigmoid needs a positive scale, got {scale}; None is 1/sqrt(key_dim)")
        if form not in FORMS:
            raise ConfigError(f"sigmoid has no form={form!r}; it has {', '.join(FORMS)}")
        self.scale, self.offset, self.learned, self.form = scale, offset, learned, form
        self.factor = heads.key_dim**-0.5 if scale is None else scale
        if learned:
            self.shift = nn.Parameter(torch.full((heads.count,), offset))
        counted = form == "exact"
        self.rule = publish(
            f"sigmoid({offset!r}, {counted})",
            Rule(
                lambda q, k, *shift: q @ k.mT + (shift[0][:, None, None] if shift else offset),
                lambda logits: torch.sigmoid(logits - visible_count(logits).log() if counted else logits),
            ),
        )

    def weights(self) -> list[Tensor]:
        """c of each head, where it is learned."""
        return [self.shift] if self.learned else []

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """The published count becomes one more column of the inner product."""
        q = q.to(torch.promote_types(q.dtype, torch.float32)) * self.factor
        if self.form == "paper":
            bias_column = -real_keys(k, key_mask).to(q.dtype).log()
            q = torch.cat([q, bias_column.expand(*q.shape[:3], 1)], -1)
            k = F.pad(k, (0, 1), value=1.0)
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
        """1 / (1 + n exp(-z)) for every pair that is allowed."""
        del marks
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.factor
        logits = logits + (self.shift[:, None, None] if self.learned else self.offset)
        logits = masked_logits(logits, causal=self.heads.causal, key_mask=key_mask, bias=bias)
        allowed = logits > float("-inf")
        count = allowed.sum(-1, keepdim=True)
        if self.form == "paper":
            count = k.shape[2] if key_mask is None else key_mask.sum(1)[:, None, None, None]
        return torch.where(allowed, 1 / (1 + count * torch.exp(-logits.masked_fill(~allowed, 0.0))), 0.0) @ v
