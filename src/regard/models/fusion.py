"""Fusion of modalities by an attention vector, any of which may be missing."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, ShapeError
from regard.core.randomness import drawn_on_cpu
from regard.core.types_of import typed
from regard.layer import linear
from regard.models.encoder import Encoder
from regard.models.fusion_config import FusionConfig
from regard.models.heads import pooled


class Fused(NamedTuple):
    """values: (..., dim). weights: (..., modalities), how much of each is in them; 0 for a missing one."""

    values: Tensor
    weights: Tensor


class Fusion(nn.Module):
    """h = sum_p beta_p h_p, beta = softmax_p(alpha), alpha_p = c . relu(W h_p + b), over the modalities that are there.

    `inner` is W and b, `query` is c. Attention with one learned query for all: its keys and values are the modalities.
    (A survey's beta has alpha_p itself for a numerator: those do not sum to 1 and may be negative.) Nothing tells the
    modalities apart but their content, so that their order does not matter.

    Cost: O(modalities dim hidden) time and O(modalities hidden) memory for each vector.

    Args:
        dim: width of the vectors.
        hidden: width of the network; None: dim.
        seed: of the initial weights.

    Raises:
        ConfigError: a width below 1.

    Example:
        >>> text, image = torch.randn(2, 5, 8)
        >>> image[4] = torch.nan
        >>> present = torch.tensor([[True, True]] * 4 + [[True, False]])
        >>> fused = Fusion(8)(torch.stack([text, image], 1), present=present)
        >>> torch.equal(fused.values[4], text[4])
        True

    Source: Yang et al. 2016 (HAN), equations 5 to 7, over modalities instead of words; ReLU for their tanh.
    """

    @typed
    @drawn_on_cpu
    def __init__(self, dim: int, *, hidden: int | None = None, seed: int = 0) -> None:
        super().__init__()
        width = dim if hidden is None else hidden
        if min(dim, width) < 1:
            raise ConfigError(f"Fusion needs dim and hidden of at least 1, got {dim=}, {hidden=}")
        self.dim = dim
        draw = generator(seed, "fusion")
        self.inner = linear(dim, width, bias=True, draw=draw)
        self.query = nn.Parameter(torch.randn(width, generator=draw) * width**-0.5)

    def forward(
        self,
        vectors: Float[Tensor, "*rows modalities dim"],
        *,
        present: Bool[Tensor, "*rows modalities"] | None = None,
    ) -> Fused:
        """Fuse the vectors of each row; rows may be a batch, or a batch of positions.

        Args:
            vectors: one for each modality.
            present: True = there; what a missing one holds has no influence, NaN included, and a row without any
                modality is exactly 0. None: all are there.

        Raises:
            ShapeError: vectors of another width, or a mask that does not fit them.
        """
        if vectors.ndim < 2 or vectors.shape[-1] != self.dim or not vectors.is_floating_point():
            raise ShapeError(
                f"Fusion: vectors must be floating (..., modalities, dim={self.dim}), got {vectors.dtype} "
                f"{tuple(vectors.shape)}"
            )
        if present is None:
            present = torch.ones(vectors.shape[:-1], dtype=torch.bool, device=vectors.device)
        if present.dtype != torch.bool or present.shape != vectors.shape[:-1]:
            raise ShapeError(
                f"Fusion: present must be bool {tuple(vectors.shape[:-1])}, True = there, got {present.dtype} "
                f"{tuple(present.shape)}"
            )
        vectors = vectors.masked_fill(~present[..., None], 0)  # 0 * NaN would be NaN, in gradients too
        logits = (torch.relu(self.inner(vectors)) @ self.query).to(torch.promote_types(vectors.dtype, torch.float32))
        logits = logits.masked_fill(~present, float("-inf"))
        highest = logits.amax(-1, keepdim=True).detach()
        share = torch.exp(logits - torch.where(highest.isinf(), 0.0, highest))
        total = share.sum(-1, keepdim=True)
        weights = (share / torch.where(total == 0, 1.0, total)).to(vectors.dtype)
        return Fused((weights[..., None] * vectors).sum(-2), weights)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class FusionOutput(NamedTuple):
    """logits: (batch, classes). weights: (batch, modalities), what was read. losses: as `ModelOutput`, by modality."""

    logits: Tensor
    weights: Tensor
    losses: dict[str, Tensor]


class FusionClassifier(nn.Module):
    """p(class | modalities) = softmax(W dropout(h) + b), h the fusion of every modality's pooled encoder output.

    Each modality has an encoder of its own, over tokens or vectors, with a `pooling` of its own. The losses of the
    modality p have the names `p.loss`.

    Args:
        config: the shape.
        classes: number of classes.

    Raises:
        ConfigError, UnsupportedError: as `Encoder`; no class.

    Example:
        >>> from regard.models import presets
        >>> model = FusionClassifier(presets.build("fusion", dim=32, heads=4), classes=10).eval()
        >>> left, right = torch.randn(2, 5, 8, 49)
        >>> model((left, right), present=torch.tensor([[True, False]] * 5)).weights[0].tolist()
        [1.0, 0.0]
    """

    @typed
    @drawn_on_cpu
    def __init__(self, config: FusionConfig, *, classes: int) -> None:
        super().__init__()
        if classes < 1:
            raise ConfigError(f"FusionClassifier has at least 1 class, got {classes}")
        self.config = config
        self.encoders = nn.ModuleList(Encoder(encoder) for encoder in config.encoders)
        self.fusion = Fusion(config.dim, hidden=config.hidden, seed=config.seed)
        self.dropout = nn.Dropout(config.dropout)
        self.output = linear(config.dim, classes, bias=True, draw=generator(config.seed, "head"))
        self.loss_weights = {
            f"{at}.{name}": weight
            for at, encoder in enumerate(self.encoders)
            for name, weight in cast(Encoder, encoder).loss_weights.items()
        }

    def forward(
        self,
        inputs: Sequence[Tensor],
        *,
        present: Bool[Tensor, "batch modalities"] | None = None,
        key_masks: Sequence[Tensor | None] | None = None,
    ) -> FusionOutput:
        """Logits, and how much of each modality is in them.

        Args:
            inputs: of every modality, token ids (batch, length) or vectors (batch, length, input_dim); a missing one
                may hold anything of that shape.
            present: (batch, modalities), True = there; None: all are there.
            key_masks: of every modality, True = real, or None.

        Raises:
            ShapeError: another number of modalities, batches that differ, or a mask that does not fit them.
            InputError, LimitError, UnsupportedError: as `Encoder.forward`.
        """
        count = len(self.encoders)
        key_masks = [None] * count if key_masks is None else key_masks
        if len(inputs) != count or len(key_masks) != count or len({len(x) for x in inputs}) > 1:
            raise ShapeError(
                f"FusionClassifier takes {count} modalities of one batch, got inputs "
                f"{[tuple(x.shape) for x in inputs]} and {len(key_masks)} key_masks"
            )
        if present is None:
            present = torch.ones(len(inputs[0]), count, dtype=torch.bool, device=inputs[0].device)
        if present.dtype != torch.bool or present.shape != (len(inputs[0]), count):
            raise ShapeError(
                f"FusionClassifier: present must be bool {(len(inputs[0]), count)}, True = there, got {present.dtype} "
                f"{tuple(present.shape)}"
            )
        vectors: list[Tensor] = []
        losses: dict[str, Tensor] = {}
        for at, (encoder, x, mask) in enumerate(zip(self.encoders, inputs, key_masks, strict=True)):
            missing = ~present[:, at]
            encoded = cast(Encoder, encoder)(
                x.masked_fill(missing.reshape(-1, *(1,) * (x.ndim - 1)), 0),
                key_mask=mask,
            )
            vectors.append(pooled(encoded, self.config.encoders[at].pooling))
            losses |= {f"{at}.{name}": loss for name, loss in encoded.losses.items()}
        fused = self.fusion(torch.stack(vectors, 1), present=present)
        return FusionOutput(self.output(self.dropout(fused.values)), fused.weights, losses)
