"""Confident adaptive language modeling."""

from typing import Literal

from regard.models.config import ModelConfig


def calm(
    *,
    vocab_size: int = 32128,
    dim: int = 512,
    layers: int = 8,
    heads: int = 6,
    head_dim: int | None = 64,
    mlp_dim: int | None = 1024,
    confidence: Literal["softmax", "saturation", "classifier"] = "softmax",
    threshold: float = 1.0,
    decaying: bool = True,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The language model whose exits are all trained, the deeper the more, so that each token may stop once it is sure.

    The published model is an encoder-decoder with T5's positions; here is its decoder without a source, with rotary
    positions. At threshold 1 it takes every block; what to set it to is measured, and depends on the text.

    Args:
        vocab_size, dim, layers, heads, head_dim, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        confidence, threshold, decaying: as the depth `early_exit`.

    Example:
        >>> calm(threshold=0.9, decaying=False).depth
        "early_exit(threshold=0.9, confidence='softmax', exits='aligned', weights='rising')"

    Source: Schuster et al. 2022, sections 3 and 5 (the shape of T5 1.1 small).
    """
    falls = f", decaying=True, horizon={max_length}" if decaying else ""
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        depth=f"early_exit(threshold={threshold}, confidence={confidence!r}, exits='aligned', weights='rising'{falls})",
        position="rotary",
        mlp="geglu_tanh",
        mlp_dim=mlp_dim,
        norm_kind="rms",
        max_length=max_length,
        dropout=dropout,
        tied=False,
        seed=seed,
    )
