"""Softmax attention with rounded weights and 8-bit keys and values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.core import Attended
from regard.engines.dense import Rule, publish, softmax
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.state import Slots, State, slot_bytes

STORES = ("int8", "float")


def rounded_rows(weights: Tensor, levels: int, renormalise: bool) -> Tensor:
    """Each row in steps of its largest weight / levels; the gradient is that of the weights themselves."""
    exact = weights.detach()
    step = exact.amax(-1, keepdim=True) / levels
    found = torch.round(exact / torch.where(step == 0, 1.0, step)) * step
    if renormalise:
        total = found.sum(-1, keepdim=True)
        found = found / torch.where(total == 0, 1.0, total)
    return found + (weights - exact)  # adds exactly 0


def codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and the size of their unit for each head and position."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    unit = wide.abs().amax(-1) / 127
    return torch.round(wide / torch.where(unit == 0, 1.0, unit)[..., None]), unit


def rounded(x: Tensor) -> Tensor:
    """x as its codes give it; the gradient is that of x itself."""
    whole, unit = codes(x)
    return whole * unit[..., None] + (x - x.detach())


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

    Args:
        heads: what to serve.
        bits: of a weight, 1 to 16.
        renormalise: whether rounded rows are divided by their sum.
        store: `int8` keys and values, or `float`, which are not rounded.

    Raises:
        ConfigError: `bits` outside 1 to 16, an unknown `store`.

    Example:
        >>> from regard import Heads
        >>> mechanism = Quantized(Heads(count=1, key_dim=2, causal=True), bits=1, store="float")
        >>> q = torch.tensor([[0.0, 0.0], [9.0, 0.0]])[None, None]
        >>> mechanism(q, q, q).values[0, 0, 1]  # one bit: the best key, and all others that are at least half as good
        tensor([9., 0.])

    Source: symmetric 8-bit quantization (Jacob et al. 2018) with straight-through gradients (Bengio et al. 2013).
    """

    info = Info(
        title="Quantized",
        source="Jacob et al. 2018, 8-bit quantization; straight-through, Bengio et al. 2013",
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
        linear_in_value=False,
        affine_in_value=False,
        sees_content_only=True,
        selects=True,
        rounding=True,
        straight_through="qkv",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"bits": 6, "renormalise": False},
        {"bits": 12, "store": "float"},
    )

    @classmethod
    def facts(cls, **options: object) -> Info:
        """Values that are not rounded enter linearly; rounded rows sum to one only if they are made to."""
        info = replace(cls.info, rows_sum_to_one=options.get("renormalise", True) is True)
        if options.get("store", "int8") == "int8":
            return info
        return replace(info, linear_in_value=True, affine_in_value=True, straight_through="qk")

    def __init__(
        self, heads: Heads, *, bits: int = 8, renormalise: bool = True, store: Literal["int8", "float"] = "int8"
    ) -> None:
        super().__init__(heads, bits=bits, renormalise=renormalise, store=store)
        if not 1 <= bits <= 16:
            raise ConfigError(f"quantized needs bits from 1 to 16, got {bits}; softmax rounds nothing")
        if store not in STORES:
            raise ConfigError(f"quantized has no store={store!r}; it has {', '.join(STORES)}")
        self.bits, self.renormalise, self.store = bits, renormalise, store
        levels, scale = 2**bits - 1, heads.key_dim**-0.5
        self.rule = publish(
            f"quantized({bits}, {renormalise}, {scale!r})",
            Rule(lambda q, k: (q * scale) @ k.mT, lambda logits: rounded_rows(softmax(logits), levels, renormalise)),
        )

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
        """Round, remember the codes, average."""
        if self.store == "float":
            return super().attend(q, k, v, key_mask=key_mask, bias=bias, marks=marks, state=state)
        if state is None:
            return Attended(self.average(q, rounded(k), rounded(v), key_mask=key_mask, bias=bias), None, {})
        assert isinstance(state, Slots)
        state = remember_codes(k, v, key_mask, state) if k.shape[2] else state
        kept = state.view()
        k, v = (kept[name] * kept[f"{name}_unit"][..., None] for name in "kv")
        return Attended(self.average(q, k, v, key_mask=kept.get("key_mask"), bias=bias), state, {})

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        if self.store == "float":
            return super().initial_state(batch, device=device, dtype=dtype)
        shape = (batch, self.heads.kv_heads, 0)
        unit = torch.empty(shape, device=device, dtype=_unit_dtype(dtype or torch.get_default_dtype()))
        return Slots.empty(
            k=torch.empty(*shape, self.heads.key_dim, device=device, dtype=torch.int8),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=torch.int8),
            k_unit=unit,
            v_unit=unit.clone(),
        )

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Length x kv_heads x (key_dim + value_dim bytes + two units); `float`: as softmax."""
        if self.store == "float":
            return super().state_nbytes(batch, length, dtype)
        per_head = self.heads.key_dim + self.heads.value_width + 2 * _unit_dtype(dtype).itemsize
        return slot_bytes(self.heads.kv_heads * per_head, length, torch.int8, batch)

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that `attend` gives keys and weights; `reference` takes them to replay its choices."""
        whole, unit = codes(k)
        k = whole * unit[..., None] if self.store == "int8" else k
        eye = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        weights = self.average(q, k, eye, key_mask=None, bias=None)
        return whole, torch.round(weights / weights.amax(-1, keepdim=True) * (2**self.bits - 1))

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
        decisions: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Every weight, as a whole number of steps."""
        del marks
        group, (key_codes, weight_codes) = self.heads.group, decisions or (None, None)
        if self.store == "int8":
            k, v = _on_grid(k, 127, key_codes), _on_grid(v, 127, None)
        logits = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(group, 1)) / q.shape[-1] ** 0.5
        # reference_softmax with the identity as values gives the weights.
        eye = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(v.shape[0], 1, -1, -1)
        weights = reference_softmax(logits, eye, causal=self.heads.causal, key_mask=key_mask, bias=bias)
        on_grid = _on_grid(weights, 2**self.bits - 1, weight_codes)
        if self.renormalise:
            off = on_grid.sum(-1, keepdim=True)
            on_grid = weights + (on_grid / off.masked_fill(off == 0, 1) - weights).detach()
        return on_grid @ v.repeat_interleave(group, 1)


def remember_codes(k: Tensor, v: Tensor, key_mask: Tensor | None, state: Slots) -> Slots:
    """The state with new slots: codes and units; or rounded numbers of unit 1, if gradients must pass the state."""
    past = state.view()
    if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, past["k"], past["v"])):
        dtype = past["k_unit"].dtype
        one = torch.ones(k.shape[:3], dtype=dtype, device=k.device)
        wide = state.map(lambda x: x.to(dtype) if x.dtype == torch.int8 else x)
        return wide.append(key_mask, k=rounded(k), v=rounded(v), k_unit=one, v_unit=one)
    (k, k_unit), (v, v_unit) = codes(k), codes(v)
    return state.append(key_mask, k=k.to(torch.int8), v=v.to(torch.int8), k_unit=k_unit, v_unit=v_unit)


def _unit_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _on_grid(x: Tensor, levels: int, given: Tensor | None) -> Tensor:
    """x in steps of its largest magnitude / levels, straight through; the number of steps may be given."""
    step = x.detach().abs().amax(-1, keepdim=True) / levels
    step = step.masked_fill(step == 0, 1)
    steps = torch.round(x.detach() / step) if given is None else given.to(x.dtype)
    return x + (steps * step - x).detach()
