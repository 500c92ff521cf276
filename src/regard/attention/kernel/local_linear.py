"""Softmax over a window, linear attention beyond it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.kernel import Kernel, defined_features, ratio
from regard.attention.kernel._exact import EXPLICIT_QUERIES, exact_average
from regard.core.attention import Attended, Call, accumulation_dtype, merge
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.state import Entry, Summary, constant
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.passes import weightless
from regard.engines.sums.step import Averaged
from regard.patterns import Pattern, causal, everything
from regard.patterns import window as within

Part = tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]
"""values and the log of their normaliser, as `merge` takes them"""


class Keys(NamedTuple):
    k: Float[Tensor, "batch kv_heads keys dim"]
    v: Float[Tensor, "batch kv_heads keys value"]
    real: Bool[Tensor, "batch keys"]

    def between(self, first: int, last: int) -> "Keys":
        return Keys(self.k[:, :, first:last], self.v[:, :, first:last], self.real[:, first:last])

    def behind(self, missing: int) -> "Keys":
        """These, behind as many hidden ones."""
        k, v = (F.pad(x, (0, 0, missing, 0)) for x in (self.k, self.v))
        return Keys(k, v, F.pad(self.real, (missing, 0)))

    def flip(self) -> "Keys":
        return Keys(self.k.flip(2), self.v.flip(2), self.real.flip(1))

    def to(self, dtype: torch.dtype) -> "Keys":
        return Keys(self.k.to(dtype), self.v.to(dtype), self.real)


@final
class LocalLinear(Kernel):
    """Softmax weights near, linear ones far: out_i = sum_j W_ij v_j / sum_j W_ij.

    W_ij = exp(q_i . k_j / sqrt(dim)) for |i - j| <= window (causal: i - window <= j <= i), else phi(q_i) . phi(k_j):
    one normaliser for both, the near part in log space. combine="gate" has two normalisers, and adds g_i near_i +
    (1 - g_i) far_i with g_i = sigmoid(a . q_i + b); where only one part has keys, it is the output. A window that
    reaches every key is softmax.

    Cost: O(length (window dim + features value)) time; O(length) memory. State, constant: keys and values of the last
    `window` slots, and the sums of phi(k_j) v_j^T and phi(k_j) over all before them: a key enters the sums when it
    leaves the window. Lost: beyond the window weights are as sharp as phi allows; keys as far below as `linear` says
    weigh nothing there.

    Example:
        >>> import torch
        >>> from regard import attend
        >>> q, k, v = torch.randn(3, 1, 1, 5, 8)
        >>> torch.allclose(attend(q, k, v, "local_linear(window=0)"), attend(q, k, v, "linear"), atol=1e-5)
        True
        >>> torch.allclose(attend(q, k, v, "local_linear(window=4)"), attend(q, k, v, "softmax"), atol=1e-5)
        True

    Source: window: Child et al. 2019, section 4; linear part: Katharopoulos et al. 2020, Eqs. 4-12; their sum under one
    normaliser: the hybrid of the exact-retrieval article.
    """

    default_info = Info(
        title="Window and linear far field",
        source="Child et al. 2019, section 4, and Katharopoulos et al. 2020, Eqs. 4-12, under one normaliser",
        supports=Supports.all(but=("cross", "bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"window": 3},
        {"window": 2, "combine": "gate", "feature_map": "taylor"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its far weights are products of features, so no term can be added to a logit",
        "cross": "a window needs queries and keys at the same positions",
    }

    window: Annotated[int, Ge(0)] = 128
    """keys on either side; causal: past keys besides the query's own. 0: no near part, which leaves linear attention"""
    combine: Literal["share", "gate"] = "share"
    """`share` one normaliser; `gate` the two averages, with a gate per head that reads the query"""
    gate_weight: nn.Parameter = weight()
    """a"""
    gate_bias: nn.Parameter = weight()
    """b"""
    pattern: Pattern = weight()
    """what is near"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Without a near part it is linear attention, whose relu features may have nothing in common."""
        near = options["window"] > 0
        return replace(
            cls.default_info,
            rows_sum_to_one=near or options["feature_map"] != "relu",
            sees_content_only=not near,
        )

    def setup(self) -> None:
        self.pattern = (causal if self.heads.causal else everything) & within(self.window)
        if self.combine == "gate":
            self.gate_weight = nn.Parameter(torch.zeros(self.heads.count, self.heads.key_dim))
            self.gate_bias = nn.Parameter(torch.zeros(self.heads.count))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Near by tiles, far by the kernel operator on keys that lag behind the queries."""
        state, mask, sums = call.state, call.key_mask, None
        keys = Keys(k, v, k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if mask is None else mask)
        if state is not None:
            assert isinstance(state, Summary)
            sums, ring = state["sum"], Keys(state["k"], state["v"], state["real"])
            keys = Keys(*(torch.cat(pair, -2 if pair[0].ndim > 2 else 1) for pair in zip(ring, keys, strict=True)))
        exact = q.to(accumulation_dtype(q.dtype))
        wide, hidden = keys.to(exact.dtype), state is not None or mask is not None
        lag = self.window + 1 if self.window else 0  # without a near part the query's own key is a far one
        lifted, log = self.query_map.lift(exact)
        far, total = self._far(lifted, wide, sums, lag)
        if not self.heads.causal:
            (values, lse), _ = self._far(lifted.flip(2), wide.flip(), sums, self.window + 1)
            far = merge([far, (values.flip(2), lse.flip(2))])
        if log is not None:
            far = far[0], far[1] + log
        values = self._combined(exact, self._near(exact, wide, hidden), far).to(q.dtype)
        return Attended(values, None if state is None else self._later(state.length, keys, total, k.shape[2]))

    def _near(self, q: Tensor, keys: Keys, hidden: bool) -> Part:
        if self.window == 0:
            return q.new_zeros(*q.shape[:3], keys.v.shape[3]), q.new_full(q.shape[:3], float("-inf"))
        explicit, real = hidden and q.shape[2] <= EXPLICIT_QUERIES < keys.k.shape[2], keys.real if hidden else None
        return exact_average(q, keys.k, keys.v, self.pattern, real, explicit=explicit)

    def _far(self, q: Tensor, keys: Keys, sums: Tensor | None, lag: int) -> tuple[Part, Tensor]:
        """Over the keys at least `lag` slots before each query, and the sums over all of these."""
        count = max(keys.k.shape[2] - lag, 0)
        far = self._averaged(q, keys.between(0, count).behind(max(q.shape[2] - count, 0)), sums)
        none = weightless(far.total)
        lse = far.total.masked_fill(none, 1).log().masked_fill(none, float("-inf"))
        return (far.values, lse), far.sum

    def _averaged(self, q: Tensor, keys: Keys, sums: Tensor | None) -> Averaged:
        phi = self.key_map.name
        return kernel_average(q, *keys[:2], sums, query_map=phi, key_map=phi, causal=True, key_mask=keys.real)

    def _combined(self, q: Tensor, near: Part, far: Part) -> Tensor:
        if self.combine == "share":
            return merge([near, far])[0]
        gate = torch.sigmoid((q * self.gate_weight[:, None]).sum(-1) + self.gate_bias[:, None])
        gate = torch.where(far[1].isneginf(), 1, torch.where(near[1].isneginf(), 0, gate))[..., None]
        return gate * near[0] + (1 - gate) * far[0]

    def _later(self, length: int, keys: Keys, total: Tensor, new: int) -> Summary:
        """The last `window` keys, and the sums over all before them."""
        count = keys.k.shape[2]
        ring = keys.between(count - self.window, count)
        if self.window:  # the key that leaves the window behind the last query
            leaving = keys.between(count - self.window - 1, count - self.window).to(total.dtype)
            total = self._averaged(leaving.k[:, :, :0], leaving, total).sum
        return Summary({"sum": total, "k": ring.k, "v": ring.v, "real": ring.real}, length + new)

    def state_layout(self) -> dict[str, Entry]:
        """The sums, and a window of slots, hidden at first."""
        heads, size = self.heads, self.window
        ring = {
            "k": constant(heads.kv_heads, size, heads.key_dim),
            "v": constant(heads.kv_heads, size, heads.value_width),
        }
        return super().state_layout() | ring | {"real": constant(size, dtype=torch.bool)}

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every weight, near and far."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        i = torch.arange(q.shape[2], device=q.device)[:, None] + call.query_start
        seen = call.visible(q, k)
        near = seen & ((i - torch.arange(k.shape[2], device=q.device)).abs() <= self.window) & (self.window > 0)
        far = (defined_features(self.feature_map, q) @ defined_features(self.feature_map, k).mT).masked_fill(
            ~seen | near, 0
        )
        logits = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).masked_fill(~near, float("-inf"))
        top = logits.amax(-1, keepdim=True).detach()
        top = torch.where(top.isneginf(), 0, torch.where((far > 0).any(-1, keepdim=True), top.clamp_min(0), top))
        odds = torch.exp(logits - top)
        if self.combine == "share":
            weights = odds + far * torch.exp(-top.clamp_min(0))  # below 0 only where there is no far key
            return ratio(weights @ v, weights.sum(-1, keepdim=True))
        sums = [x.sum(-1, keepdim=True) for x in (odds, far)]
        gate = 1 / (1 + torch.exp(-torch.einsum("bhid,hd->bhi", q, self.gate_weight) - self.gate_bias[:, None]))
        gate = torch.where(sums[1] == 0, 1, torch.where(sums[0] == 0, 0, gate[..., None]))
        return gate * ratio(odds @ v, sums[0]) + (1 - gate) * ratio(far @ v, sums[1])
