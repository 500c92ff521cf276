"""Compressive Transformer."""

from typing import Literal

from regard.models.config import ModelConfig


def compressive_transformer(
    *,
    vocab_size: int = 256,
    dim: int = 1024,
    layers: int = 24,
    heads: int = 8,
    mlp_dim: int | None = 3072,
    max_length: int = 768,
    memory_length: int = 768,
    compressed_length: int = 1152,
    rate: int = 3,
    function: Literal["max", "mean", "convolution", "dilated_convolution", "most_used"] = "convolution",
    loss: Literal["attention", "auto_encoding", "none"] = "attention",
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The decoder of bytes (enwik8): what leaves the memory of Transformer-XL is kept in one slot for `rate` positions.

    Lengths and rate are the paper's for enwik8; other sizes are those of its 24 layers as far as they were at hand. The
    compression is trained by its own loss, of which no gradient reaches the rest, see `compressive`.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, dropout, seed: as `ModelConfig`.
        max_length: tokens of a segment.
        memory_length, compressed_length, rate, function, loss: as the memory `compressive`.

    Example:
        >>> compressive_transformer(function="mean").memory
        'compressive(length=768, compressed=1152, rate=3, function=mean, loss=attention)'

    Source: Rae et al. 2020, section 3 and 5.2.
    """
    sizes = f"length={memory_length}, compressed={compressed_length}, rate={rate}"
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("softmax",),
        position="transformer_xl",
        memory=f"compressive({sizes}, function={function}, loss={loss})",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="post",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        projection_bias=False,
        seed=seed,
    )
