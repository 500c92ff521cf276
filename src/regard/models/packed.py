"""Weights of 8 bits, for models that are used and not trained: decoding is bound by reading them."""

import warnings
from functools import cache
from typing import Literal, Never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import UnsupportedError
from regard.layer.projections import Projections
from regard.models.decoder import LanguageModel
from regard.models.parts import Mlp

WeightKind = Literal["float32", "int8"]
"""How weights are kept: as they are, or packed by `pack`."""

_REFUSED = "this model has weights of 8 bits, which are for inference alone: {}; load it again without weights=int8"
_LEVELS, _SAFE_LEVELS = 127, 63


class PackedLinear(nn.Module):
    """y = x W^T + b with W kept as round(W / s), s_o = max_i |W_oi| / 127 for each output o, and integer products.

    Inputs are rounded too, every row of several by itself, so that no row depends on others. A row becomes a coarse
    part of 8 bits and what is left of it, again in 8 bits, as two rows of one product; one row alone is rounded once
    where `fine` is False. On processors whose products of bytes saturate, half of the levels are used, and every
    row is split.

    Args:
        weight: W, (out, in), on the CPU.
        bias: b, (out,), or None.
        fine: split one row alone too, for inputs with few large components.

    Raises:
        UnsupportedError: this build of torch has no such product for this processor.

    Source: rounding by outputs and rows: Dettmers et al. 2022, LLM.int8(), section 2.1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, fine: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._levels = _levels()
        self._fine = fine or self._levels < _LEVELS
        self._packed = _pack(weight.detach().float())
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """The product.

        Raises:
            UnsupportedError: inputs that learn, through which no gradient would flow.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(_REFUSED.format("no gradient flows through them"))
        y = self._split(x) if self._fine or x.numel() != self.in_features else self._whole(x)
        return (y if self._bias is None else y.add_(self._bias)).to(x.dtype)

    def _whole(self, x: Tensor) -> Tensor:
        """One row, rounded once: scaled before, since torch's rounding loses rows below 1e-5 and stops at NaN."""
        largest = torch.linalg.vector_norm(x.float(), torch.inf)
        whole = (x / largest.clamp_min(torch.finfo(torch.float32).tiny)).nan_to_num_(0, 0, 0)
        return torch.ops.quantized.linear_dynamic(whole.float(), self._packed, False).mul_(largest)

    def _split(self, x: Tensor) -> Tensor:
        """Each row as two: its coarse part and what is left."""
        largest = torch.linalg.vector_norm(x.float(), torch.inf, -1, keepdim=True)
        levels, whole = self._levels, x / largest.clamp_min_(torch.finfo(torch.float32).tiny)
        coarse = torch.fake_quantize_per_tensor_affine(whole, 1 / levels, 0, -levels, levels)
        both = torch.stack((coarse, whole.sub_(coarse).mul_(2 * levels)))
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        first, second = product(both, 1 / levels, levels + 1, self._packed).unbind()
        return torch.add(first, second, alpha=0.5 / levels).mul_(largest)

    def train(self, mode: bool = True) -> "PackedLinear":
        """Evaluation mode.

        Raises:
            UnsupportedError: training.
        """
        if mode:
            raise UnsupportedError(_REFUSED.format("they cannot be trained"))
        return super().train(mode)

    def _save_to_state_dict(self, destination: object, prefix: str, keep_vars: bool) -> Never:
        del destination, keep_vars
        raise UnsupportedError(_REFUSED.format(f"{prefix.removesuffix('.')} is not written"))

    def extra_repr(self) -> str:
        """The sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def pack(model: LanguageModel) -> None:
    """Keep the weights of every projection, of the MLPs and of the output layer at 8 bits, for inference alone.

    A token reads a quarter of the bytes. The token embeddings, of which it reads one row, stay as they are; so do
    norms, positions and what a mechanism has of its own. How a row is rounded depends on whether it comes alone, so
    that a step of one row is not to the last digit what it is in a batch, or in a pass over the whole text. Packed
    twice is packed once.

    Args:
        model: changed in place: put into evaluation mode, and nothing of it learns any more.

    Raises:
        UnsupportedError: weights on another device than the CPU, or a processor without such a product. Nothing was
            changed.

    Example:
        >>> from regard.models import ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=32, vocab_size=50))
        >>> pack(model)
        >>> model(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 50])
    """
    device = model.table.weight.device.type
    if device != "cpu":
        raise UnsupportedError(f"weights of 8 bits need a CPU, and this model is on {device}; use device=cpu")
    _levels()
    if isinstance(model.output, PackedLinear):
        return
    for module in list(model.modules()):
        if isinstance(module, Projections | Mlp):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    # What an MLP multiplies last is bounded by no norm, and has few large components.
                    fine = isinstance(module, Mlp) and name == "down"
                    setattr(module, name, PackedLinear(child.weight, child.bias, fine=fine))
    head = model.table.weight if model.output is None else model.output.weight
    # Most of a token's time there is reading: a second row costs next to nothing.
    model.output = PackedLinear(head, None, fine=True)  # type: ignore[assignment]
    model.requires_grad_(False).eval()


def _pack(weight: Float[Tensor, "out in"]) -> torch.ScriptObject:
    scale = weight.abs().amax(1).double().clamp_min(torch.finfo(torch.float32).tiny) / 127
    rounded = torch.round(weight / scale[:, None]).to(torch.int8).contiguous()
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():  # torch says that such tensors will go; `_levels` says so when they have gone
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ops.quantized.linear_prepack(
            torch._make_per_channel_quantized_tensor(rounded, scale, zeros, 0), None
        )


@cache
def _levels() -> int:
    """Steps from 0 to the largest input with which products of bytes are exact on this processor.

    Without an instruction for sums of products of bytes, sums of two products are kept in 16 bits, where
    2 x 255 x 127 has no room.
    """
    width = 64
    try:
        packed = _pack(torch.ones(16, width))
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        for levels in (_LEVELS, _SAFE_LEVELS):
            found = product(torch.ones(2, width), 1 / levels, levels + 1, packed)
            if torch.allclose(found, torch.full_like(found, width), rtol=1e-5):
                return levels
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        raise UnsupportedError(f"this torch has no product of packed bytes for this processor: {error}") from error
    raise UnsupportedError("products of packed bytes are inexact on this processor")
