"""Memorizing Transformer."""

from typing import Literal

from regard.errors import ConfigError
from regard.models.config import ModelConfig


def memorizing_transformer(
    *,
    vocab_size: int = 32000,
    dim: int = 1024,
    layers: int = 12,
    heads: int = 8,
    head_dim: int | None = 128,
    mlp_dim: int | None = 4096,
    max_length: int = 512,
    memory_length: int = 512,
    pairs: int = 8192,
    top: int = 32,
    index: Literal["exact", "ivf"] = "exact",
    memory_layer: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> ModelConfig:
    """A decoder with the memory of Transformer-XL in every layer, one of which also searches the keys of its document.

    That layer compares by normalised queries and keys in its segment too (`cosine`), as it does in its memory. Which
    layer it is, of 12, and the lengths are the paper's; activation and dropout are ours.

    Args:
        vocab_size, dim, layers, heads, head_dim, mlp_dim, dropout, seed: as `ModelConfig`.
        max_length: tokens of a segment.
        memory_length: hidden states that a layer remembers as its past.
        pairs, top, index: as the memory `memorizing`; published: up to 262,144 pairs.
        memory_layer: the one that searches, from 1; None: three quarters of the way, the 9th of 12.

    Raises:
        ConfigError: there is no such layer.

    Example:
        >>> memorizing_transformer(layers=2).memory
        ('recent(length=512)', 'memorizing(pairs=8192, top=32, recent=512)')

    Source: Wu et al. 2022, sections 3 and 4.
    """
    at = -(-3 * layers // 4) if memory_layer is None else memory_layer
    if not 1 <= at <= layers:
        raise ConfigError(f"memorizing_transformer has layers 1 to {layers}, got memory_layer={memory_layer}")
    searches = [layer == at for layer in range(1, layers + 1)]
    options = f"pairs={pairs}, top={top}, recent={memory_length}" + ("" if index == "exact" else f", index={index}")
    recent, searched = f"recent(length={memory_length})", f"memorizing({options})"
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        attention=tuple("cosine" if here else "softmax" for here in searches),
        position="t5_bias",
        memory=tuple(searched if here else recent for here in searches),
        mlp="gelu",
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        seed=seed,
    )
