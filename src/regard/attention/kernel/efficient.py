"""Efficient Attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.kernel import visible
from regard.core import Attended, Attention, ScoreBias, State, Summary
from regard.engines.sums.channels import average_by_channel
from regard.engines.sums.passes import LOWEST, accumulator, divisor
from regard.errors import ConfigError, nearest
from regard.info import Heads, Info, Supports

NORMALISERS = ("softmax", "scaling")
IMPLS = ("auto", "torch", "reference")


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

    Args:
        normaliser: "softmax", or "scaling": rho(x) = x / sqrt(length), Eq. 4: out = Q (K^T V) / keys, signed. Divides
            by the length of the call, so it refuses causal=True.
        impl: "auto" and "torch" are the linear-time form, "reference" the definition (no state).

    Raises:
        ConfigError: an option outside its values.
        UnsupportedError: normaliser="scaling" with causal=True.

    Example:
        >>> import torch
        >>> from regard.core import Heads
        >>> attention = Efficient(Heads(count=2, key_dim=8, causal=True))
        >>> attention(*torch.randn(3, 1, 2, 5, 8)).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Shen et al. 2021, Eqs. 3-5; the causal form is this library's.
    """

    info = Info(
        title="Efficient attention",
        source="Shen et al. 2021, Efficient Attention: Attention with Linear Complexities, arXiv:1812.01243, Eqs. 3-5",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"normaliser": "scaling"})

    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "causal": "normaliser='scaling' divides by the length of the call; normaliser='softmax' serves it",
        "state": "impl='reference' has none",
    }

    def __init__(
        self,
        heads: Heads,
        *,
        normaliser: Literal["softmax", "scaling"] = "softmax",
        impl: Literal["auto", "torch", "reference"] = "auto",
    ) -> None:
        super().__init__(heads, normaliser=normaliser, impl=impl)
        for name, value, allowed in (("normaliser", normaliser, NORMALISERS), ("impl", impl, IMPLS)):
            if value not in allowed:
                raise ConfigError(f"efficient has no {name}={value!r}: {nearest(value, allowed)}")
        self.normaliser, self.impl = normaliser, impl

    @classmethod
    def facts(cls, **options: object) -> Info:
        scaling, explicit = options.get("normaliser") == "scaling", options.get("impl") == "reference"
        return replace(
            cls.info,
            supports=replace(cls.info.supports, causal=not scaling, prefix=not scaling, state=not explicit),
            time=2 if explicit else 1,
            memory=2 if explicit else 1,
            state="none" if explicit else "constant",
            rows_sum_to_one=not scaling,
            nonnegative=not scaling,
        )

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Summary:
        if not self.info.supports.state:
            self.refuse("state", "state")
        return self._start(batch, device, torch.get_default_dtype() if dtype is None else dtype)

    def _start(self, batch: int, device: torch.device | None, dtype: torch.dtype) -> Summary:
        heads, kept = self.heads, accumulator(dtype)
        shape = (batch, heads.kv_heads, heads.key_dim, heads.value_width)
        if self.normaliser == "scaling":
            zeros = (torch.zeros(x, dtype=kept, device=device) for x in (shape, (batch,)))
            return Summary(dict(zip(("sum", "count"), zeros, strict=True)))
        total = torch.zeros(*shape[:3], shape[3] + 1, dtype=kept, device=device)
        return Summary({"sum": total, "top": torch.full(shape[:3], float("-inf"), dtype=kept, device=device)})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Constant: dim x (value + 2) numbers per head of keys; scaling dim x value, and one count per sequence."""
        del length
        if not self.info.supports.state:
            self.refuse("state", "state")
        heads, scaling = self.heads, self.normaliser == "scaling"
        numbers = heads.kv_heads * heads.key_dim * (heads.value_width + (0 if scaling else 2)) + scaling
        return batch * numbers * accumulator(dtype).itemsize

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
    ) -> Attended:
        del bias, marks
        dtype = accumulator(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            if self.impl == "reference":
                summed = (x.to(dtype) for x in (q, k, v))
                return Attended(self.reference(*summed, key_mask=key_mask).to(q.dtype), None, {})
            past = self._start(q.shape[0], q.device, q.dtype) if state is None else state
            assert isinstance(past, Summary)
            if self.normaliser == "scaling":
                values, content = self._scaled(q.to(dtype), k.to(dtype), v.to(dtype), key_mask, past)
            else:
                values, content = self._averaged(q, k, v, key_mask, past)
        return Attended(values.to(q.dtype), None if state is None else Summary(content, past.length + k.shape[2]), {})

    def _averaged(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        r, sum, top = q.to(accumulator(q.dtype)).softmax(-1), past["sum"], past["top"]
        if key_mask is not None:
            k = k.masked_fill(~key_mask[:, None, :, None], float("-inf"))
        if self.heads.causal and q.shape[2] > 1:
            found = average_by_channel(r, k, v, sum, top)
            return found.values, {"sum": found.sum, "top": found.top}
        k, v = k.to(r.dtype), v.to(r.dtype)  # every query sees every key
        if k.shape[2]:
            new = torch.maximum(top, k.detach().amax(2))
            safe = new.clamp_min(LOWEST)
            columns = F.pad(v, (0, 1), value=1.0)
            sum = sum * (top - safe).exp()[..., None] + (k - safe[:, :, None]).exp().mT @ columns
            top = new
        context = sum[..., :-1] / divisor(sum[..., -1:])
        return (r.unflatten(1, (k.shape[1], -1)) @ context[:, :, None]).flatten(1, 2), {"sum": sum, "top": top}

    def _scaled(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sum = past["sum"] + k.mT @ v  # keys under the mask are 0
        real = torch.full_like(past["count"], k.shape[2]) if key_mask is None else key_mask.sum(1).to(sum.dtype)
        count = past["count"] + real
        values = (q.unflatten(1, (k.shape[1], -1)) @ (sum / divisor(count)[:, None, None, None])[:, :, None]).flatten(
            1, 2
        )
        return values, {"sum": sum, "count": count}

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
        """Every channel's softmax over the keys that each query sees: queries x keys x dim numbers."""
        del bias, marks
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        seen = visible(q, k, self.heads.causal, key_mask)
        if self.normaliser == "scaling":
            weights = (q @ k.mT).masked_fill(~seen, 0) / seen.sum(-1, keepdim=True).clamp_min(1)
            return weights @ v
        logits = k[:, :, None].masked_fill(~seen[..., None], float("-inf"))
        of_keys = torch.exp(logits - logits.amax(3, keepdim=True).clamp_min(LOWEST))
        of_keys = of_keys / of_keys.sum(3, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        of_queries = torch.exp(q - q.amax(-1, keepdim=True))
        of_queries = of_queries / of_queries.sum(-1, keepdim=True)
        return torch.einsum("bhic,bhijc,bhjv->bhiv", of_queries, of_keys, v)
