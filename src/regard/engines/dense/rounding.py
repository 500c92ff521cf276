"""Numbers on a grid, with the gradient of the numbers themselves: 8-bit codes of vectors, and steps of weights."""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.core.state import Slots
from regard.core.transforms import forward_mode


def rounded_rows(weights: Float[Tensor, "*rows keys"], levels: int, renormalise: bool) -> Float[Tensor, "*rows keys"]:
    """Each row in steps of its largest weight / levels; the gradient is that of the weights themselves."""
    exact = weights.detach()
    step = exact.amax(-1, keepdim=True) / levels
    on_grid = torch.round(exact / torch.where(step == 0, 1.0, step)) * step
    if renormalise:
        total = on_grid.sum(-1, keepdim=True)
        on_grid = on_grid / torch.where(total == 0, 1.0, total)
    return on_grid + (weights - exact)  # adds exactly 0


def codes(x: Float[Tensor, "*slots dim"]) -> tuple[Float[Tensor, "*slots dim"], Float[Tensor, "*slots"]]:
    """Whole numbers from -127 to 127, and the size of their unit for each head and slot."""
    wide = x.detach().to(accumulation_dtype(x.dtype))
    unit = wide.abs().amax(-1) / 127
    return torch.round(wide / torch.where(unit == 0, 1.0, unit)[..., None]), unit


def rounded(x: Float[Tensor, "*slots dim"]) -> Float[Tensor, "*slots dim"]:
    """x as its codes give it; the gradient is that of x itself."""
    whole, unit = codes(x)
    return whole * unit[..., None] + (x - x.detach())


def append_codes(
    state: Slots,
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    key_mask: Tensor | None,
) -> Slots:
    """The state with new slots: codes and units; or rounded numbers of unit 1, if gradients must pass the state."""
    if _learned(state, k, v):
        wide = _widened(state)
        one = torch.ones(k.shape[:3], dtype=wide.view()["k_unit"].dtype, device=k.device)
        return wide.append(key_mask, k=rounded(k), v=rounded(v), k_unit=one, v_unit=one)
    (k, k_unit), (v, v_unit) = codes(k), codes(v)
    return state.append(key_mask, k=k.to(torch.int8), v=v.to(torch.int8), k_unit=k_unit, v_unit=v_unit)


def _learned(state: Slots, *new: Tensor) -> bool:
    """True if derivatives must pass through what the state keeps; in forward mode no tensor requires a gradient."""
    asked = any(x.requires_grad for x in (*new, *state.tensors().values()))
    return (torch.is_grad_enabled() and asked) or forward_mode()


def _widened(state: Slots) -> Slots:
    """The state with codes as numbers that may stand beside rounded ones."""
    dtype = state.view()["k_unit"].dtype
    return state.map(lambda x: x.to(dtype) if x.dtype == torch.int8 else x)


def block_codes(
    x: Float[Tensor, "batch heads slots dim"], size: int
) -> tuple[Float[Tensor, "batch heads blocks size dim"], Float[Tensor, "batch heads blocks dim"]]:
    """Codes of complete blocks of `size` slots, and their unit for each head, block and channel."""
    wide = x.detach().to(accumulation_dtype(x.dtype)).unflatten(2, (x.shape[2] // size, size))
    unit = wide.abs().amax(3) / 127
    return torch.round(wide / torch.where(unit == 0, 1.0, unit)[:, :, :, None]), unit


def rounded_blocks(x: Float[Tensor, "batch heads slots dim"], size: int) -> Float[Tensor, "batch heads slots dim"]:
    """Complete blocks as their codes give them; the gradient is that of x itself."""
    whole, unit = block_codes(x, size)
    return (whole * unit[:, :, :, None]).flatten(2, 3) + (x - x.detach())


class Blocks(NamedTuple):
    """Slots in blocks, of which the complete ones are rounded.

    coarse: keys and values of the complete blocks, rounded; without a state those of every slot, of which the ones
    behind these blocks are not for use. exact: those of the slots from `first` on, which begins a block, as they were
    given. complete: slots in complete blocks. key_mask: of every slot. state: behind them.
    """

    coarse: tuple[Tensor, Tensor]
    exact: tuple[Tensor, Tensor]
    first: int
    complete: int
    key_mask: Tensor | None
    state: Slots | None

    def known(self, complete: int) -> tuple[Tensor, Tensor]:
        """Keys and values of every slot, the first `complete` ones rounded; these are at least `first`."""
        pairs = zip(self.coarse, self.exact, strict=True)
        if self.state is None:  # by slot: a compiler makes another graph where a slice may be empty
            early = (torch.arange(self.exact[0].shape[2], device=self.exact[0].device) < complete)[:, None]
            k, v = (torch.where(early, coarse, exact) for coarse, exact in pairs)
        else:
            k, v = (
                torch.cat([coarse[:, :, :complete], exact[:, :, complete - self.first :].to(coarse.dtype)], 2)
                for coarse, exact in pairs
            )
        return k, v


def whole_call(k: Tensor, v: Tensor, key_mask: Tensor | None, size: int) -> Blocks:
    """Keys and values of a call without a state, in blocks of `size` slots."""
    keys = k.shape[2]
    coarse = tuple(rounded_blocks(F.pad(x, (0, 0, 0, -keys % size)), size)[:, :, :keys] for x in (k, v))
    return Blocks((coarse[0], coarse[1]), (k, v), 0, keys // size * size, key_mask, None)


def in_blocks(k: Tensor, v: Tensor, key_mask: Tensor | None, state: Slots | None, size: int) -> Blocks:
    """Keys and values behind a state, in blocks of `size` slots.

    The state holds blocks as its slots: `k`, `v` (codes, of `size` slots one after the other), `k_unit`, `v_unit` and
    `real`; and what came since the last complete one beside them: `open_k`, `open_v`, `open_real`.
    """
    if state is None:
        return whole_call(k, v, key_mask, size)
    state, exact, first = _append(state, k, v, key_mask, size)
    kept = state.view()
    k, v = (
        (kept[name].unflatten(3, (size, kept[f"{name}_unit"].shape[3])) * kept[f"{name}_unit"][:, :, :, None])
        for name in "kv"
    )
    real = torch.cat([kept["real"].mT.flatten(1), state.steady["open_real"][:, : state.length % size]], 1)
    coarse = k.flatten(2, 3), v.flatten(2, 3)
    return Blocks(coarse, exact, first, coarse[0].shape[2], real, state)


def _append(
    state: Slots, k: Tensor, v: Tensor, key_mask: Bool[Tensor, "batch keys"] | None, size: int
) -> tuple[Slots, tuple[Tensor, Tensor], int]:
    """The state with new slots, what is exact of them and of the block that they go on with, and where that begins."""
    open_slots, length = state.length % size, state.length + k.shape[2]
    learned = _learned(state, k, v)
    state = _widened(state) if learned else state
    real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask
    real = torch.cat([state.steady["open_real"][:, :open_slots], real], 1)
    whole = real.shape[1] // size * size
    new: dict[str, Tensor] = {"real": real[:, :whole].unflatten(1, (whole // size, size)).mT}
    steady = {"open_real": F.pad(real[:, whole:], (0, size - 1 - real.shape[1] + whole))}
    exact: list[Tensor] = []
    for name, x in (("k", k), ("v", v)):
        x = torch.cat([state.steady[f"open_{name}"][:, :, :open_slots], x], 2)
        done, left = x[:, :, :whole], x[:, :, whole:]
        if learned:
            new[name] = rounded_blocks(done, size).unflatten(2, (whole // size, size)).flatten(3)
            new[f"{name}_unit"] = new[name].new_ones(*new[name].shape[:3], x.shape[3])
        else:
            code, new[f"{name}_unit"] = block_codes(done, size)
            new[name] = code.flatten(3).to(torch.int8)
        steady[f"open_{name}"] = F.pad(left, (0, 0, 0, size - 1 - left.shape[2]))
        exact.append(x)
    grown = state.append(**new).with_steady(**{name: steady[name] for name in state.steady})
    return replace(grown, length=length), (exact[0], exact[1]), state.length - open_slots
