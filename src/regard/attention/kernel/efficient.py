"""Efficient Attention."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import Attended, Attention, Call, accumulation_dtype
from regard.core.compiling import known_within
from regard.core.info import Info, Supports
from regard.core.state import Entry, Summary, begin, constant
from regard.engines.sums.channels import average_by_channel
from regard.engines.sums.passes import LOWEST, divisor


@final
class Efficient(Attention):
    """Efficient Attention: out = rho_q(Q) (rho_k(K)^T V), with rho_q a softmax over channels, rho_k over positions.

    out_i = sum_c rho_q(q_i)_c mu_c, mu_c = sum_j exp(k_jc) v_j / sum_j exp(k_jc): every channel c of the keys is one
    attention map over the positions, its mean mu_c one global context vector (the paper's G, Eq. 3 and 5), and a query
    says how much of each it takes. rho_k normalises over positions, so this is no phi(q) . phi(k) (SPEC N6).

    Causal (not in the paper): the sums run over j <= i. The code that is known for it divides by one common sum for all
    channels, another function.

    Cost: O(length x dim x value) time; a state of dim x (value + 2) numbers per head: sums, their normalisers, and a
    running maximum of each channel. Lost against softmax: only dim attention maps, which no query sharpens.

    Raises:
        UnsupportedError: normaliser="scaling" with causal=True.

    Example:
        >>> import torch
        >>> from regard.core.attention import Heads
        >>> q = 99 * torch.eye(2).reshape(1, 1, 2, 2)  # each query takes one channel
        >>> k = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 99.0]]).reshape(1, 1, 3, 2)
        >>> v = torch.tensor([1.0, 3.0, 8.0]).reshape(1, 1, 3, 1)
        >>> Efficient(Heads(count=1, key_dim=2, value_dim=1))(q, k, v).values.round().flatten()  # each channel's mean
        tensor([4., 8.])

    Source: Shen et al. 2021, Eqs. 3-5; the causal form is this library's.
    """

    default_info = Info(
        title="Efficient attention",
        source="Shen et al. 2021, Efficient Attention: Attention with Linear Complexities, arXiv:1812.01243, Eqs. 3-5",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"normaliser": "scaling"})
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "causal": "normaliser='scaling' divides by the length of the call; normaliser='softmax' serves it",
    }

    normaliser: Literal["softmax", "scaling"] = "softmax"
    """`scaling` is rho(x) = x / sqrt(length), Eq. 4: out = Q (K^T V) / keys, signed. It divides by the length of the
    call, so it refuses causal=True"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Scaling divides by the whole length, and has signed weights."""
        softmax = options["normaliser"] == "softmax"
        supports = replace(cls.default_info.supports, causal=softmax, prefix=softmax)
        return replace(cls.default_info, supports=supports, rows_sum_to_one=softmax, nonnegative=softmax)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The sums of every channel, and how much of each a query takes."""
        past = call.state
        whole = past is None and call.key_mask is None and self.normaliser == "softmax" and not self.heads.causal
        if whole and known_within(k, torch.finfo(k.dtype).min):  # a channel that is -inf throughout has no softmax
            return Attended(self._whole(q, k, v).to(q.dtype))
        if past is None:
            past = begin(self.state_layout(), q.shape[0], device=q.device, dtype=q.dtype)
        assert isinstance(past, Summary)
        run = self._scaled if self.normaliser == "scaling" else self._averaged
        with torch.autocast(q.device.type, enabled=False):
            values, content = run(q, k, v, call.key_mask, past)
        state = None if call.state is None else Summary(content, past.length + k.shape[2])
        return Attended(values.to(q.dtype), state)

    def _whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every query sees every key, and nothing is kept: two softmaxes and two products."""
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.to(accumulation_dtype(x.dtype)) for x in (q, k, v))
            return _taken(q.softmax(-1), k.softmax(2).mT @ v)

    def _averaged(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        r, sum, top = q.to(accumulation_dtype(q.dtype)).softmax(-1), past["sum"], past["top"]
        if key_mask is not None:
            k = k.masked_fill(~key_mask[:, None, :, None], float("-inf"))
        if self.heads.causal and q.shape[2] > 1:
            result = average_by_channel(r, k, v, sum, top)
            return result.values, {"sum": result.sum, "top": result.top}
        k, v = k.to(r.dtype), v.to(r.dtype)  # every query sees every key
        if k.shape[2]:
            new = torch.maximum(top, k.detach().amax(2))
            safe = new.clamp_min(LOWEST)
            columns = F.pad(v, (0, 1), value=1.0)
            sum = sum * (top - safe).exp()[..., None] + (k - safe[:, :, None]).exp().mT @ columns
            top = new
        total = sum[..., -1:]  # 0 without a key, else at least the 1 of the largest one
        return _taken(r, sum[..., :-1] / total.masked_fill(total == 0, float("inf"))), {"sum": sum, "top": top}

    def _scaled(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = (x.to(accumulation_dtype(x.dtype)) for x in (q, k, v))
        sum = past["sum"] + k.mT @ v  # keys under the mask are 0
        real = torch.full_like(past["count"], k.shape[2]) if key_mask is None else key_mask.sum(1).to(sum.dtype)
        count = past["count"] + real
        return _taken(q, sum / divisor(count)[:, None, None, None]), {"sum": sum, "count": count}

    def state_layout(self) -> dict[str, Entry]:
        """The sums of every channel, with their normalisers and maxima; scaling: with one count of real keys."""
        heads, softmax = self.heads, self.normaliser == "softmax"
        shape = heads.kv_heads, heads.key_dim
        layout = {"sum": constant(*shape, heads.value_width + softmax, dtype="accumulation")}
        if softmax:
            return layout | {"top": constant(*shape, dtype="accumulation", fill=float("-inf"))}
        return layout | {"count": constant(dtype="accumulation")}

    @property
    def adds_states(self) -> bool:
        """They are sums over keys."""
        return self.impl != "reference"

    def added(self, states: Sequence[Summary]) -> Summary:
        """As `Mechanism.added`; sums whose scale is that of their largest key are brought to a common one."""
        if self.normaliser == "scaling":
            return super().added(states)
        return replace(states[-1], content=_at_one_scale(states))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every channel's softmax over the keys that each query sees: queries x keys x dim numbers."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        seen = call.visible(q, k)
        if self.normaliser == "scaling":
            weights = (q @ k.mT).masked_fill(~seen, 0) / seen.sum(-1, keepdim=True).clamp_min(1)
            return weights @ v
        logits = k[:, :, None].masked_fill(~seen[..., None], float("-inf"))
        of_keys = torch.exp(logits - logits.amax(3, keepdim=True).clamp_min(LOWEST))
        of_keys = of_keys / of_keys.sum(3, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        of_queries = torch.exp(q - q.amax(-1, keepdim=True))
        of_queries = of_queries / of_queries.sum(-1, keepdim=True)
        return torch.einsum("bhic,bhijc,bhjv->bhiv", of_queries, of_keys, v)


def _at_one_scale(states: Sequence[Summary]) -> dict[str, Tensor]:
    """The sum of sums that are relative to the largest key of each channel, relative to the largest of all."""
    tops = torch.stack([state["top"] for state in states]).detach()
    top = tops.amax(0)
    scales = (tops - top.clamp_min(LOWEST)).exp()[..., None]
    return {"sum": (torch.stack([state["sum"] for state in states]) * scales).sum(0), "top": top}


def _taken(of_q: Tensor, context: Tensor) -> Tensor:
    """of_q (batch, heads, queries, dim) times the contexts (batch, kv_heads, dim, value) of its group."""
    return (of_q.unflatten(1, (context.shape[1], -1)) @ context[:, :, None]).flatten(1, 2)
