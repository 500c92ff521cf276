"""Numbers on a grid, with the gradient of the numbers themselves: 8-bit codes of vectors, and steps of weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core import accumulation_dtype
from regard.state import Slots
from regard.transforms import transformed


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
    past = state.view()
    learned = torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, past["k"], past["v"]))
    if learned or transformed():
        dtype = past["k_unit"].dtype
        one = torch.ones(k.shape[:3], dtype=dtype, device=k.device)
        wide = state.map(lambda x: x.to(dtype) if x.dtype == torch.int8 else x)
        return wide.append(key_mask, k=rounded(k), v=rounded(v), k_unit=one, v_unit=one)
    (k, k_unit), (v, v_unit) = codes(k), codes(v)
    return state.append(key_mask, k=k.to(torch.int8), v=v.to(torch.int8), k_unit=k_unit, v_unit=v_unit)
