"""Every slot, in few bits but for the newest ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.core.attention import Attention
from regard.core.call import Attended
from regard.core.composite import States
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.state import Slots, Tape
from regard.memory.caches._base import Cache
from regard.memory.caches._codes import coded, decoded, packed, unpacked
from regard.memory.caches._slots import Rows, only_slots


@dataclass(frozen=True)
class CodedState(States):
    """Codes of older slots, and the newest ones exactly.

    `keys`, `values`: exact. `key_codes`: a row of codes per slot; `key_ranges`: low and step of each channel, per group
    of slots; `value_codes`: codes, low and step per slot and group of channels.
    """

    aligned: ClassVar[bool] = False

    def slots(self, name: str) -> Slots:
        """A part."""
        return cast(Slots, self.parts[name])

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.slots("key_codes").kept + self.slots("keys").kept

    def rewind(self, count: int) -> "CodedState":
        """The state itself for 0 slots.

        Raises:
            UnsupportedError: for more; the digits of what was rounded are gone.
        """
        if count:
            raise UnsupportedError(
                "slots that were rounded since cannot be made exact again; keep the earlier state, which stays usable, "
                "and append from it"
            )
        return self


@final
class Quantized(Cache):
    """Keeps every slot: older keys in codes per channel over groups of slots, older values in codes per slot.

    A group's codes lie evenly between its least and its greatest number, so that an error is at most (greatest -
    least) / (2 (2^bits - 1)), and half of the last digit that the call's dtype has for the number. Row i reads codes of
    the keys j < recent floor(i / recent), which came in complete blocks, and of the values j < i - recent; in between
    everything is exact, in a prompt as in decoding. Published code reads a whole prompt exactly.

    State, per number: bits / 8 bytes, and two numbers of float32 (of a wider dtype in such calls) for each group.
    Reading makes all keys and values of one layer again.

    Source: Liu et al. 2024, KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache, section 4.
    """

    title: ClassVar[str] = "few bits"
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"recent": 4, "group": 4},
        {"recent": 8, "group": 2, "bits": 8},
    )
    pads: ClassVar[bool] = False

    bits: Literal[8, 4, 2] = 4
    """of a code"""
    group: Annotated[int, Ge(1)] = 32
    """slots of a key group, channels of a value group (all channels of narrower values)"""
    recent: Annotated[int, Ge(1)] = 32
    """slots of a block of keys, and newest values that are exact; a multiple of group"""

    def check_options(self) -> None:
        width = self.heads.value_width
        if self.recent % self.group:
            raise ConfigError(f"cache quantized: group={self.group} must divide recent={self.recent}")
        if width % min(self.group, width):
            raise ConfigError(f"cache quantized: group={self.group} must divide the values' width {width}")

    def check(self, attention: Attention) -> None:
        only_slots(attention, "quantized")
        layout, kv = attention.layout(), self.heads.kv_heads
        exact = {name: len(entry.shape) == 2 and entry.dtype == "call" for name, entry in layout.items()}
        if layout.keys() != {"k", "v"} or not all(exact.values()) or layout["v"].shape != (kv, self.heads.value_width):
            raise UnsupportedError(
                f"cache quantized rounds keys and values, and {attention.info.title} keeps {', '.join(sorted(layout))}"
            )

    def empty(self, slots: Slots) -> CodedState:
        k, v = (slots.tensors()[name] for name in "kv")
        groups = v.shape[3] // min(self.group, v.shape[3])
        bytes_of = [packed(x.to(torch.uint8), self.bits) for x in (k, v)]
        wide = torch.promote_types(v.dtype, torch.float32)
        ranges, channels = v.new_empty(*v.shape[:3], groups, dtype=wide), k.to(wide)
        return CodedState(
            {
                "key_codes": Slots.empty(codes=bytes_of[0]),
                "key_ranges": Slots.empty(low=channels, step=channels),
                "value_codes": Slots.empty(codes=bytes_of[1], low=ranges, step=ranges),
                "keys": Slots.empty(k=k),
                "values": Slots.empty(v=v),
            }
        )

    def state_nbytes(self, attention: Attention, batch: int, length: int, dtype: torch.dtype) -> int:
        rows, width, dv = batch * self.heads.kv_heads, attention.layout()["k"].shape[1], self.heads.value_width
        keys, values = length - length % self.recent, max(length - self.recent, 0)
        code = [-(-x * self.bits // 8) for x in (width, dv)]
        ranges = 2 * keys // self.group * width + 2 * values * (dv // min(self.group, dv))
        exact = (length - keys) * width + (length - values) * dv
        wide = torch.promote_types(dtype, torch.float32)
        return rows * (keys * code[0] + values * code[1] + ranges * wide.itemsize + exact * dtype.itemsize)

    def read(self, state: CodedState) -> tuple[Tensor, Tensor]:
        """(keys, values) of every slot, as the next row reads them: (batch, kv_heads, slots, width)."""
        keys, values, ranges = state.slots("keys"), state.slots("values"), state.slots("key_ranges").view()
        exact_k, exact_v = keys.view()["k"], values.view()["v"]
        codes = unpacked(state.slots("key_codes").view()["codes"], self.bits, exact_k.shape[3])
        low, step = (x.repeat_interleave(self.group, 2) for x in (ranges["low"], ranges["step"]))
        old = state.slots("value_codes").view()
        share = min(self.group, exact_v.shape[3])
        grouped = unpacked(old["codes"], self.bits, exact_v.shape[3]).unflatten(-1, (-1, share))
        k = torch.cat([decoded(codes, low, step, exact_k.dtype), exact_k], 2)
        v = decoded(grouped, old["low"][..., None], old["step"][..., None], exact_v.dtype)
        return k, torch.cat([v.flatten(3), exact_v], 2)

    def rows(self, attention: Attention, rows: Rows, state: States, counted: Tensor | None) -> Attended:
        assert isinstance(state, CodedState)
        past, keys = state.length, rows.k.shape[2]
        work: dict[str, Tensor] = {}
        for name, x in zip("kv", self.read(state), strict=True):
            work[name] = x.new_empty(*x.shape[:2], past + keys, x.shape[3])
            work[name][:, :, :past] = x
        parts, first = list[Tensor](), 0
        while first < keys or not parts:
            stop = min(keys, max(self.recent - past, first + 1))  # nothing is rounded before
            at, to = past + first, past + stop
            before = Slots(Tape(work, at, past + keys), 0, at, at, {}, attention.spec_tag)
            answer = rows.cut(first, stop, past)._replace(key_mask=None).through(attention, before)
            new = {name: x[:, :, at:] for name, x in cast(Slots, answer.state).view().items()}
            for name, x in new.items():
                work[name][:, :, at:to] = x
            state = self.rounded(state, new, work)
            parts.append(answer.values)
            first = stop
        return Attended(parts[0] if len(parts) == 1 else torch.cat(parts, 2), state)

    def rounded(self, state: CodedState, new: dict[str, Tensor], work: dict[str, Tensor]) -> CodedState:
        """The state with new slots, whose older ones become codes; what these stand for is written into `work`."""
        parts = {name: state.slots(name) for name in state.parts}
        keys, values = parts["keys"].append(k=new["k"]), parts["values"].append(v=new["v"])
        if keys.kept >= self.recent:
            at, block = parts["key_codes"].kept, keys.view()["k"][:, :, : self.recent]
            codes, low, step = coded(block.unflatten(2, (-1, self.group)), self.bits, 3)
            work["k"][:, :, at : at + self.recent] = decoded(codes, low, step, block.dtype).flatten(2, 3)
            parts["key_codes"] = parts["key_codes"].append(codes=packed(codes.flatten(2, 3), self.bits))
            parts["key_ranges"] = parts["key_ranges"].append(low=low.squeeze(3), step=step.squeeze(3))
            keys = keys.drop(self.recent)
        excess = values.kept - self.recent
        if excess > 0:
            at, old = parts["value_codes"].kept, values.view()["v"][:, :, :excess]
            grouped = old.unflatten(-1, (-1, min(self.group, old.shape[3])))
            codes, low, step = coded(grouped, self.bits, -1)
            work["v"][:, :, at : at + excess] = decoded(codes, low, step, old.dtype).flatten(3)
            ranges = {"low": low.squeeze(-1), "step": step.squeeze(-1)}
            parts["value_codes"] = parts["value_codes"].append(codes=packed(codes.flatten(3), self.bits), **ranges)
            values = values.drop(excess)
        return CodedState({**parts, "keys": keys, "values": values})
