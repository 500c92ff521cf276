"""A vision Transformer with Efficient Attention."""

from dataclasses import replace
from typing import Literal

from regard.models.encoder_config import EncoderConfig
from regard.models.presets.vit import vit


def efficient_attention(
    *,
    input_dim: int = 768,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_dim: int | None = None,
    normaliser: Literal["softmax", "scaling"] = "softmax",
    max_length: int = 197,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """ViT base whose layers are Efficient Attention, O(length): every channel of the keys is one map over the image.

    The paper puts single modules, one head each, into convolutional networks for detection and stereo; no Transformer
    of it was published. The shape here is that of `vit`, and heads follow the authors' code. Attention is
    bidirectional, as published; a decoder with the running causal form, whose state is constant, is
    `build("gpt", attention=("efficient",), attention_dropout=0.0)`.

    Args:
        input_dim, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `vit`.
        normaliser: softmax over channels and over positions, or scaling by the root of the length, the paper's two.

    Example:
        >>> efficient_attention().attention
        ("efficient(normaliser='softmax')",)

    Source: Shen et al. 2021, sections 3.2 and 3.3; shape: Dosovitskiy et al. 2021, table 1.
    """
    base = vit(
        input_dim=input_dim,
        dim=dim,
        layers=layers,
        heads=heads,
        mlp_dim=mlp_dim,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    return replace(base, attention=(f"efficient(normaliser={normaliser!r})",))
