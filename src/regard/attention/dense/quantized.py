"""Softmax attention with rounded weights and 8-bit keys and values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from regard.attention.dense import Dense, inner_products, reference_weights
from regard.core import Attended, Call, accumulation_dtype
from regard.engines.dense import Rule, append_codes, codes, publish, rounded, rounded_rows, softmax
from regard.info import Info, Supports
from regard.state import Entry, Slots, per_slot


@final
class Quantized(Dense):
    """Softmax attention as 8-bit hardware computes it: o_i = sum_j p^_ij v^_j, p = softmax(q k^ / sqrt(d)).

    p^_ij = round(p_ij / s_i) s_i with s_i = max_j p_ij / (2^bits - 1), then divided by its sum if `renormalise`.
    k^_j = round(k_j / u_j) u_j with u_j = max_c |k_jc| / 127 per head and position, likewise v^: parallel and streaming
    calls round alike, and no token's rounding depends on another's. Gradients are straight-through, as if nothing were
    rounded.

    What is lost, over the visible keys, against exact softmax with output o:
    by the state, |o^_ic - o_ic| <= tanh(E_i / 2) (max_j v_jc - min_j v_jc) + max_j u^v_j / 2, where
    E_i = |q_i|_1 max_j u^k_j / (2 sqrt(d)) bounds the error of a logit;
    by the weights, of k^ and v^: without `renormalise` at most (s_i / 2) sum_j |v^_jc|, and rows sum to 1 up to
    (s_i / 2) #keys; with it rows sum to 1, and at most (s_i / 2) sum_j |v^_jc - o_ic| / sum_j round(p_ij / s_i) s_i.

    Cost: O(queries keys dim) time and O(length) memory, as the dense engine's: weights live for one chunk only, so that
    rounding them shows an accuracy and saves nothing. State: one byte per number of keys and values, and two units
    per head and slot, in at least float32. Where gradients are recorded the state keeps k^ and v^ as they are, so that
    they pass.

    Example:
        >>> from regard import Heads
        >>> mechanism = Quantized(Heads(count=1, key_dim=2, causal=True), bits=1, store="float")
        >>> q = torch.tensor([[0.0, 0.0], [9.0, 0.0]])[None, None]
        >>> mechanism(q, q, q).values[0, 0, 1]  # one bit: the best key, and all others that are at least half as good
        tensor([9., 0.])

    Source: symmetric 8-bit quantization (Jacob et al. 2018) with straight-through gradients (Bengio et al. 2013).
    """

    default_info = Info(
        title="Quantized",
        source="Jacob et al. 2018, 8-bit quantization; straight-through, Bengio et al. 2013",
        supports=Supports.all(but=("marks",)),
        state="length",
        linear_in_value=False,
        affine_in_value=False,
        sees_content_only=True,
        selects=True,
        replays_choices=True,
        straight_through="qkv",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"bits": 6, "renormalise": False},
        {"bits": 12, "store": "float"},
    )

    bits: Annotated[int, Ge(1), Le(16)] = 8
    """of a weight"""
    renormalise: bool = True
    """whether rounded rows are divided by their sum"""
    store: Literal["int8", "float"] = "int8"
    """`int8` keys and values, or `float`, which are not rounded"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Values that are not rounded enter linearly; rounded rows sum to one only if they are made to."""
        info = replace(cls.default_info, rows_sum_to_one=options["renormalise"])
        if options["store"] == "int8":
            return info
        return replace(info, linear_in_value=True, affine_in_value=True, straight_through="qk")

    def setup(self) -> None:
        levels, scale, renormalise = self.levels, self.heads.key_dim**-0.5, self.renormalise
        self.rule = publish(
            f"quantized({self.bits}, {renormalise}, {scale!r})",
            Rule(lambda q, k: (q * scale) @ k.mT, lambda logits: rounded_rows(softmax(logits), levels, renormalise)),
        )

    @property
    def levels(self) -> int:
        """The steps of the largest weight of a row."""
        return 2**self.bits - 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Round, remember the codes, average."""
        if self.store == "float":
            return super().attend(q, k, v, call)
        if call.state is None:
            return self.average(q, rounded(k), rounded(v), call)
        assert isinstance(call.state, Slots)
        state = append_codes(call.state, k, v, call.key_mask) if k.shape[2] else call.state
        kept = state.view()
        k, v = (kept[name] * kept[f"{name}_unit"][..., None] for name in "kv")
        return self.average(q, k, v, call._replace(key_mask=kept.get("key_mask"), state=state))

    def state_layout(self) -> dict[str, Entry]:
        """The code of every key and value, and their units; `float`: as softmax."""
        layout, heads = super().state_layout(), self.heads.kv_heads
        if self.store == "float":
            return layout
        unit = per_slot(heads, dtype="accumulation")
        return {n: replace(x, dtype=torch.int8) for n, x in layout.items()} | {"k_unit": unit, "v_unit": unit}

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that `attend` gives keys and weights; `reference` takes them to replay its choices."""
        q, k = (x.to(accumulation_dtype(x.dtype)) for x in (q, k))  # weights in bfloat16 would be rounded twice
        whole, unit = codes(k)
        k = whole * unit[..., None] if self.store == "int8" else k
        eye = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        causal = self.heads.causal
        call = Call(causal=causal, query_start=k.shape[2] - q.shape[2] if causal else 0)
        weights = self.average(q, k, eye, call).values
        return whole, torch.round(weights / weights.amax(-1, keepdim=True) * self.levels)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Every weight, as a whole number of steps."""
        key_codes, weight_codes = decisions or (None, None)
        if self.store == "int8":
            k, v = _on_grid(k, 127, key_codes), _on_grid(v, 127, None)
        weights = reference_weights(inner_products(q, k) / q.shape[-1] ** 0.5, call)
        on_grid = _on_grid(weights, self.levels, weight_codes)
        if self.renormalise:
            off = on_grid.sum(-1, keepdim=True)
            on_grid = weights + (on_grid / off.masked_fill(off == 0, 1) - weights).detach()
        return on_grid @ v.repeat_interleave(self.heads.group, 1)


def _on_grid(x: Tensor, levels: int, steps: Tensor | None) -> Tensor:
    """x in steps of its largest magnitude / levels, straight through; the number of steps may be given."""
    step = x.detach().abs().amax(-1, keepdim=True) / levels
    step = step.masked_fill(step == 0, 1)
    steps = torch.round(x.detach() / step) if steps is None else steps.to(x.dtype)
    return x + (steps * step - x).detach()
