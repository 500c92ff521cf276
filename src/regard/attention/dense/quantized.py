"""Softmax attention with rounded weights and 8-bit keys and values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from regard.attention.dense import Dense, inner_products, reference_weights
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.state import Entry, Slots, constant, per_slot
from regard.engines.dense import (
    Blocks,
    Rule,
    append_codes,
    block_codes,
    chunked,
    codes,
    expand_heads,
    in_blocks,
    publish,
    rounded,
    rounded_rows,
    softmax,
    whole_call,
)


@final
class Quantized(Dense):
    """Softmax attention as 8-bit hardware computes it: o_i = sum_j p^_ij v^_j, p = softmax(q k^ / sqrt(d)).

    p^_ij = round(p_ij / s_i) s_i with s_i = max_j p_ij / (2^bits - 1), then divided by its sum if `renormalise`.
    k^_j = round(k_j / u_j) u_j with u_j = max_c |k_jc| / 127 per head and position, likewise v^: parallel and streaming
    calls round alike, and no token's rounding depends on another's. Gradients are straight-through, as if nothing were
    rounded.

    With `units="channel"` the unit belongs to a channel c of a block of B = `block_size` slots, beta(j) = floor(j / B):
    k^_jc = round(k_jc / u_c) u_c with u_c = max over the slots r of block beta(j) of |k_rc| / 127, likewise v^. A
    channel that is large everywhere then takes no digits from the others. Query i reads k^_j and v^_j of the blocks
    before its own, and of its own block k_j and v_j as they are: no later token changes what it saw, and calls may be
    split anywhere. Without causality every complete block is rounded, and the slots behind the last one are not.

    What is lost, over the visible keys, against exact softmax with output o:
    by the state, |o^_ic - o_ic| <= tanh(E_i / 2) (max_j v_jc - min_j v_jc) + max_j u^v_j / 2, where
    E_i = |q_i|_1 max_j u^k_j / (2 sqrt(d)) bounds the error of a logit;
    with `units="channel"` the same with E_i = sum_c |q_ic| max_beta u_(beta c) / (2 sqrt(d)) and u^v of the channel c;
    by the weights, of k^ and v^: without `renormalise` at most (s_i / 2) sum_j |v^_jc|, and rows sum to 1 up to
    (s_i / 2) #keys; with it rows sum to 1, and at most (s_i / 2) sum_j |v^_jc - o_ic| / sum_j round(p_ij / s_i) s_i.

    Cost: O(queries keys dim) time and O(length) memory, as the dense engine's: weights live for one chunk only, so that
    rounding them shows an accuracy and saves nothing. State: one byte per number of keys and values, and two units
    per head and slot, in at least float32; by channel a unit for each of a block's channels, one byte per slot for the
    mask, and room for the block_size - 1 slots of a block in progress as they are. Where gradients are recorded the
    state keeps k^ and v^ as they are, so that they pass.

    Example:
        >>> from regard import Heads
        >>> mechanism = Quantized(Heads(count=1, key_dim=2, causal=True), bits=1, store="float")
        >>> q = torch.tensor([[0.0, 0.0], [9.0, 0.0]])[None, None]
        >>> mechanism(q, q, q).values[0, 0, 1]  # one bit: the best key, and all others that are at least half as good
        tensor([9., 0.])

    Source: symmetric 8-bit quantization (Jacob et al. 2018) with straight-through gradients (Bengio et al. 2013); units
    of channels over complete blocks, and recent slots as they are: Liu et al. 2024 (KIVI), section 3.
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
        {"units": "channel", "block_size": 4},
    )

    bits: Annotated[int, Ge(1), Le(16)] = 8
    """of a weight"""
    renormalise: bool = True
    """whether rounded rows are divided by their sum"""
    store: Literal["int8", "float"] = "int8"
    """`int8` keys and values, or `float`, which are not rounded"""
    units: Literal["token", "channel"] = "token"
    """of the 8-bit numbers: one for each head and slot, or for each head, channel and complete block of slots"""
    block_size: Annotated[int, Ge(2)] = 64
    """B, slots that share the units of `channel`"""
    by_block: str = weight()
    """the rule of queries in several blocks"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Values that are not rounded enter linearly; rounded rows sum to one only if they are made to."""
        info = replace(cls.default_info, rows_sum_to_one=options["renormalise"])
        if options["store"] == "int8":  # blocks begin at slots
            return replace(info, anchored=True, sees_content_only=False) if options["units"] == "channel" else info
        return replace(info, linear_in_value=True, affine_in_value=True, straight_through="qk")

    def check_options(self) -> None:
        """Numbers that are not rounded have no units."""
        if self.units == "channel" and self.store == "float":
            raise ConfigError("quantized: units='channel' are those of store='int8'; store='float' rounds no number")

    def setup(self) -> None:
        levels, scale, renormalise, size = self.levels, self.heads.key_dim**-0.5, self.renormalise, self.block_size

        def normalise(logits: Tensor) -> Tensor:
            return rounded_rows(softmax(logits), levels, renormalise)

        def own(distances: Tensor) -> Tensor:
            at = distances[:, :1]  # the distance to slot 0
            return at - distances >= at // size * size

        def score(q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
            coarse, exact = ((q * scale) @ each.mT for each in k.chunk(2, -1))
            return torch.where(own(distances), exact, coarse)

        def average(weights: Tensor, v: Tensor, distances: Tensor) -> Tensor:
            inside, (coarse, exact) = own(distances), v.chunk(2, -1)
            return torch.cat([weights.masked_fill(inside, 0) @ coarse, weights.masked_fill(~inside, 0) @ exact], -1)

        name = f"{self.bits}, {renormalise}, {scale!r}"
        self.rule = publish(f"quantized({name})", Rule(lambda q, k: (q * scale) @ k.mT, normalise))
        by_block = Rule(score, normalise, depth=2, relative=True, average=average)
        self.by_block = publish(f"quantized({name}) by blocks of {size}", by_block)

    @property
    def levels(self) -> int:
        """The steps of the largest weight of a row."""
        return 2**self.bits - 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Round, remember the codes, average."""
        if self.store == "float":
            return super().attend(q, k, v, call)
        assert call.state is None or isinstance(call.state, Slots)
        if self.units == "channel":
            blocks = in_blocks(k, v, call.key_mask, call.state, self.block_size)
            call = call._replace(key_mask=blocks.key_mask, state=blocks.state)
            return self.average_blocks(q, blocks, call)
        if call.state is None:
            return self.average(q, rounded(k), rounded(v), call)
        state = append_codes(call.state, k, v, call.key_mask) if k.shape[2] else call.state
        kept = state.view()
        k, v = (kept[name] * kept[f"{name}_unit"][..., None] for name in "kv")
        return self.average(q, k, v, call._replace(key_mask=kept.get("key_mask"), state=state))

    def average_blocks(self, q: Tensor, blocks: Blocks, call: Call) -> Attended:
        """The average where each query reads its own block exactly and the complete ones before it rounded."""
        size, complete, queries = self.block_size, blocks.complete, q.shape[2]
        begins = [at // size * size for at in (call.query_start, call.query_start + queries - 1)]
        if not call.causal or begins[0] == begins[1] or not queries:  # the same keys for all
            k, v = blocks.known(min(begins[0], complete) if call.causal and queries else complete)
            return self.average(q, k, v, call)
        both = zip(blocks.known(complete), blocks.known(blocks.first), strict=True)
        k, v = (expand_heads(torch.cat(versions, -1), self.heads.count) for versions in both)
        coarse, exact = chunked(self.by_block, q, k, v, call, dropout=self.dropped).chunk(2, -1)
        return Attended(coarse + exact, call.state)

    def kept_slots(self, length: int) -> int:
        """Every slot; by channel the complete blocks."""
        return length // self.block_size if self.units == "channel" else length

    def state_layout(self) -> dict[str, Entry]:
        """The code of every key and value, and their units; `float`: as softmax."""
        layout, heads = super().state_layout(), self.heads.kv_heads
        if self.store == "float":
            return layout
        if self.units == "channel":
            return self.block_layout()
        unit = per_slot(heads, dtype="accumulation")
        return {n: replace(x, dtype=torch.int8) for n, x in layout.items()} | {"k_unit": unit, "v_unit": unit}

    def block_layout(self) -> dict[str, Entry]:
        """Codes, units and mask of each complete block, as one slot; and the block in progress."""
        heads, size = self.heads, self.block_size
        layout: dict[str, Entry] = {}
        for name, width in (("k", heads.key_dim), ("v", heads.value_width)):
            layout[name] = per_slot(heads.kv_heads, size * width, dtype=torch.int8)
            layout[f"{name}_unit"] = per_slot(heads.kv_heads, width, dtype="accumulation")
            layout[f"open_{name}"] = constant(heads.kv_heads, size - 1, width)
        real = {"real": per_slot(size, dtype=torch.bool), "open_real": constant(size - 1, dtype=torch.bool)}
        return {**layout, **real}

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The codes that `attend` gives keys and weights; `reference` takes them to replay its choices."""
        q, k = (x.to(accumulation_dtype(x.dtype)) for x in (q, k))  # weights in bfloat16 would be rounded twice
        eye = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        causal = self.heads.causal
        call = Call(causal=causal, query_start=k.shape[2] - q.shape[2] if causal else 0)
        if self.units == "channel":
            blocks = whole_call(k, eye, None, self.block_size)
            blocks = blocks._replace(coarse=(blocks.coarse[0], eye))  # what weights one by one are an average of
            whole, _ = block_codes(k[:, :, : blocks.complete], self.block_size)
            return whole, self.steps(self.average_blocks(q, blocks, call).values)
        whole, unit = codes(k)
        k = whole * unit[..., None] if self.store == "int8" else k
        return whole, self.steps(self.average(q, k, eye, call).values)

    def steps(self, weights: Tensor) -> Tensor:
        """Rounded weights as whole numbers."""
        return torch.round(weights / weights.amax(-1, keepdim=True) * self.levels)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Every weight, as a whole number of steps."""
        key_codes, weight_codes = decisions or (None, None)
        exact, own = (k, v), None
        if self.units == "channel":
            k, v = _by_channel(k, self.block_size, key_codes), _by_channel(v, self.block_size, None)
            i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
            before = (i + call.query_start)[:, None] if call.causal else k.shape[2]
            own = (j // self.block_size + 1) * self.block_size > before  # incomplete when the query comes
        elif self.store == "int8":
            k, v = _on_grid(k, 127, key_codes), _on_grid(v, 127, None)
        logits = inner_products(q, k)
        if own is not None:
            logits = torch.where(own, inner_products(q, exact[0]), logits)
        weights = reference_weights(logits / q.shape[-1] ** 0.5, call)
        on_grid = _on_grid(weights, self.levels, weight_codes)
        if self.renormalise:
            off = on_grid.sum(-1, keepdim=True)
            on_grid = weights + (on_grid / off.masked_fill(off == 0, 1) - weights).detach()
        v, exact_v = (x.repeat_interleave(self.heads.group, 1) for x in (v, exact[1]))
        return on_grid @ v if own is None else (on_grid * ~own) @ v + (on_grid * own) @ exact_v


def _by_channel(x: Tensor, size: int, steps: Tensor | None) -> Tensor:
    """x with each channel of each complete block of slots on a grid of its own."""
    whole = x.shape[2] // size
    blocks = x[:, :, : whole * size].reshape(*x.shape[:2], whole, size, x.shape[3])
    return torch.cat([_on_grid(blocks, 127, steps, axis=3).flatten(2, 3), x[:, :, whole * size :]], 2)


def _on_grid(x: Tensor, levels: int, steps: Tensor | None, axis: int = -1) -> Tensor:
    """x in steps of its largest magnitude along `axis` / levels, straight through; the number of steps may be given."""
    step = x.detach().abs().amax(axis, keepdim=True) / levels
    step = step.masked_fill(step == 0, 1)
    steps = torch.round(x.detach() / step) if steps is None else steps.to(x.dtype)
    return x + (steps * step - x).detach()
