"""The Sparse Transformer."""

from typing import Literal

from regard.errors import ConfigError, nearest
from regard.models.config import ModelConfig

_PARTS = {"strided": ("window", "stride"), "fixed": ("block", "summary")}
"""The two sets of each pattern, in the order in which layers must follow: `fixed` reaches everything only so."""


def sparse_transformer(
    *,
    vocab_size: int = 256,
    dim: int = 512,
    layers: int = 30,
    heads: int = 8,
    pattern: Literal["strided", "fixed"] = "fixed",
    combine: Literal["union", "alternate", "heads"] = "union",
    stride: int = 128,
    columns: int | None = None,
    max_length: int = 12288,
    dropout: float = 0.4,
    seed: int = 0,
) -> ModelConfig:
    """The model of enwik8, 95 million weights: pre-norm decoder over bytes, whose blocks are computed again.

    `strided`: the last `stride` positions, and every `stride`-th one; for images and sound, whose width it is. `fixed`:
    the own block of `stride` positions, and the last `columns` of every block; for text. Both sets together reach every
    position in two steps. `combine` says how: every head sees the `union`; layers `alternate` between them; or the two
    are split over the `heads`, which the paper finds best where heads are many.

    That of CIFAR-10 is (dim, layers, heads) = (256, 128, 2) with pattern strided and dropout 0.25, that of ImageNet at
    64 x 64 (512, 48, 16) with dropout 0.01. The published queries and keys are half as wide as here there.

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `ModelConfig`.
        pattern, combine: as said.
        stride: l of the paper, near the root of the length.
        columns: c of the paper, of fixed only; None: 32.

    Raises:
        ConfigError: a pattern or a way of combining that does not exist, columns of strided.

    Example:
        >>> sparse_transformer().attention
        ('fixed_union(stride=128, columns=32)',)
        >>> sparse_transformer(pattern="strided", combine="alternate", layers=3).attention[:2]
        ("strided(stride=128, part='window')", "strided(stride=128, part='stride')")

    Source: Child et al. 2019, sections 4.3 (patterns), 5.2 (combining), 5.4 (recomputation), 7.1 and 7.2 (shapes).
    """
    if pattern not in _PARTS:
        raise ConfigError(f"sparse_transformer has no pattern {pattern!r}: {nearest(pattern, _PARTS)}")
    if pattern == "strided" and columns is not None:
        raise ConfigError(
            f"sparse_transformer: columns belongs to pattern='fixed', got {columns=}, {pattern=}; leave it out"
        )
    sizes = f"stride={stride}" + (f", columns={32 if columns is None else columns}" if pattern == "fixed" else "")
    ways = {
        "union": (f"{pattern}_union({sizes})",),
        "alternate": tuple(f"{pattern}({sizes}, part={_PARTS[pattern][at % 2]!r})" for at in range(layers)),
        "heads": (f"{pattern}({sizes}, part='heads')",),
    }
    if combine not in ways:
        raise ConfigError(f"sparse_transformer cannot combine by {combine!r}: {nearest(combine, ways)}")
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=ways[combine],
        position="learned",
        mlp="gelu",
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=False,
        dropout=dropout,
        bias=True,
        checkpoint="block",
        seed=seed,
    )
