"""Weights of 8 bits, for models that are used and not trained: decoding is bound by reading them."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Literal, Never, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.core.errors import UnsupportedError
from regard.layer import Part, Projections
from regard.models.decoder import PACKED, LanguageModel
from regard.models.parts import Mlp

WeightKind = Literal["float32", "int8"]
"""How weights are kept: as they are, or packed by `pack`."""

_LEVELS, _SAFE_LEVELS = 127, 64


class _ForInference(nn.Module):
    """What has packed weights: it neither learns nor is written, and it stays on the CPU, whatever dtype it is cast to.

    Raises:
        UnsupportedError: training, a state dict, or another device.
    """

    def train(self, mode: bool = True) -> Self:
        """Evaluation mode."""
        if mode:
            raise UnsupportedError(PACKED.format("they cannot be trained"))
        return super().train(mode)

    def _save_to_state_dict(self, destination: object, prefix: str, keep_vars: bool) -> Never:
        del destination, keep_vars
        raise UnsupportedError(PACKED.format(f"{prefix.removesuffix('.')} is not written"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if fn(torch.empty(0)).device.type != "cpu":
            raise UnsupportedError(PACKED.format("they stay on the CPU"))
        return super()._apply(fn, recurse)


class PackedPart(_ForInference, Part):
    """A layer whose packed weights lie beside those of others."""


class PackedLinear(_ForInference):
    """y = x W^T + b with W kept as round(W / s), s_o = max_i |W_oi| / 127 for each output o, and integer products.

    Inputs are rounded too, every row by itself, so that no row depends on others: to a coarse part of 8 bits, and what
    is left of it, again to 8 bits, as two rows of one product that reads the weights once. On processors whose products
    of bytes saturate, half of the levels are used.

    Args:
        weight: W, (out, in), on the CPU.
        bias: b, (out,), or None.
        fine: how many of the last outputs have weights of two bytes: what is left of W, rounded again.

    Raises:
        UnsupportedError: this build of torch has no such product for this processor.

    Source: rounding by outputs and rows: Dettmers et al. 2022, LLM.int8(), section 2.1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, fine: int = 0) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._fine, self._levels = fine, _levels()
        weight = weight.detach().float()
        if fine:
            whole, scale = _rounded(weight[-fine:])
            weight = torch.cat([weight, (weight[-fine:] - whole * scale[:, None]).float()])
        self._packed = _pack(weight)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """The product.

        Raises:
            UnsupportedError: inputs that learn, through which no gradient would flow.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(PACKED.format("no gradient flows through them"))
        rows, levels = x.float(), self._levels
        step = rows.abs().amax(-1, True).div_(levels).clamp_min_(torch.finfo(torch.float32).tiny)
        whole = rows / step
        coarse = whole.round()
        both = torch.stack((coarse, whole.sub_(coarse).mul_(2 * levels)))
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        first, second = product(both, 1.0, levels + 1, self._packed).unbind()
        y = first.add_(second, alpha=0.5 / levels).mul_(step)
        if self._fine:
            y, rest = y.tensor_split((self.out_features,), -1)
            y.narrow(-1, -self._fine, self._fine).add_(rest)
        return (y if self._bias is None else y.add_(self._bias)).to(x.dtype)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def pack(model: LanguageModel) -> None:
    """Keep the weights of every projection, of the MLPs and of the output layer at 8 bits, for inference alone.

    A token reads a quarter of the bytes. The token embeddings, of which it reads one row, stay as they are; so do
    norms, positions and what a mechanism has of its own. Layers that read the same inputs become one product. Values
    keep two bytes. A row is rounded by itself, so that it is the same alone and in a batch; pieces of a text may differ
    from the whole by a step of rounding. Another dtype is that of the rest of the model. Packed twice is packed once.

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
        if isinstance(module, Projections):
            _pack_together(module, ("query", "key", "value"))
        elif isinstance(module, Mlp):
            _pack_together(module, ("gate", "up"))
        else:
            continue
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias, fine=_fine(name, child)))
    head = model.table.weight if model.output is None else model.output.weight
    model.output = PackedLinear(head, None if model.output is None else model.output.bias)  # type: ignore[assignment]
    model.requires_grad_(False).eval()
    model.packed = True


def _fine(name: str, layer: nn.Linear) -> int:
    """How many outputs have two bytes: values are few, and their errors reach every head of a group and later token."""
    return layer.out_features if name == "value" else 0


def _pack_together(module: nn.Module, names: tuple[str, ...]) -> None:
    """Make the layers of these names, which read the same inputs, parts of one product; not if one of them is missing.

    Only the outputs of the last one may have weights of two bytes.
    """
    layers = [layer for name in names if isinstance(layer := getattr(module, name), nn.Linear)]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    alike = len({layer.in_features for layer in layers}) == 1 and len(biases) in (0, len(layers))
    if len(layers) < len(names) or not alike:
        return
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat(biases) if biases else None
    product = PackedLinear(weight, bias, fine=_fine(names[-1], layers[-1]))
    counts = tuple(layer.out_features for layer in layers)
    for at, name in enumerate(names):
        setattr(module, name, PackedPart(product, counts, at))


def _rounded(weight: Float[Tensor, "out in"]) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"]]:
    """Whole numbers from -127 to 127, and what each row of them is multiplied with."""
    scale = weight.abs().amax(1).double().clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.round(weight / scale[:, None]), scale


def _pack(weight: Float[Tensor, "out in"]) -> torch.ScriptObject:
    whole, scale = _rounded(weight)
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():  # torch says that such tensors will go; `_levels` says so when they have gone
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ops.quantized.linear_prepack(
            torch._make_per_channel_quantized_tensor(whole.to(torch.int8).contiguous(), scale, zeros, 0), None
        )


@cache
def _levels() -> int:
    """Steps from 0 to the largest input with which products of bytes are exact on this processor.

    Without an instruction for sums of products of bytes, sums of two products are kept in 16 bits. 2 x 255 x 127 has no
    room there; of n levels on each side and a spare one below, 2 (2 n + 1) 127 has it up to n = 64.
    """
    width = 64
    try:
        packed = _pack(torch.ones(16, width))
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        for levels in (_LEVELS, _SAFE_LEVELS):
            found = product(torch.full((2, width), float(levels)), 1.0, levels + 1, packed)
            if torch.allclose(found, torch.full_like(found, levels * width), rtol=1e-5):
                return levels
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        raise UnsupportedError(f"this torch has no product of packed bytes for this processor: {error}") from error
    raise UnsupportedError("products of packed bytes are inexact on this processor")
