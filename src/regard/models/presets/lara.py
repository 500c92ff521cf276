"""A vision Transformer with linear randomized attention (LARA)."""

from dataclasses import replace
from typing import Literal

from regard.models.encoder_config import EncoderConfig
from regard.models.presets.vit import vit


def lara(
    *,
    input_dim: int = 192,
    dim: int = 192,
    layers: int = 12,
    heads: int = 3,
    mlp_dim: int | None = None,
    num_landmarks: int = 49,
    coefficient: float = 2.0,
    pool: Literal["mean", "mixed"] = "mixed",
    max_length: int = 784,
    dropout: float = 0.0,
    seed: int = 0,
) -> EncoderConfig:
    """The tiny DeiT of the paper for images of 224 x 224 in patches of 8 x 8, O(length): 49 proposals for 784 patches.

    Without a cls vector: the head reads the mean of the patches, as the published code does. There landmarks are means
    over squares of the image, here over runs of the raster. Published in patches of 16: input_dim 768 and max_length
    196, also with (dim, heads) = (384, 6). Landmarks see all positions, so there is no decoder.

    Args:
        input_dim, dim, layers, heads, mlp_dim, dropout, seed: as `vit`.
        num_landmarks, coefficient, pool: as the mechanism `lara`, here as in published runs.
        max_length: patches.

    Example:
        >>> lara().attention
        ("lara(num_landmarks=49, coefficient=2.0, pool='mixed')",)

    Source: Zheng, Wang, Kong 2022, section 5 (image classification), and the commands of its published code.
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
    return replace(
        base,
        attention=(f"lara(num_landmarks={num_landmarks}, coefficient={coefficient!r}, pool={pool!r})",),
        cls_token=False,
        pooling="mean",
        projection_bias=None,
    )
