"""Adaptive attention span."""

from regard.models.config import ModelConfig


def adaptive_span(
    *,
    vocab_size: int = 256,
    dim: int = 512,
    layers: int = 12,
    heads: int = 8,
    mlp_dim: int | None = 2048,
    max_span: int = 8192,
    ramp: int = 32,
    dynamic: bool = False,
    max_length: int = 8192,
    dropout: float = 0.3,
    seed: int = 0,
) -> ModelConfig:
    """The character language model whose heads learn how far they look; most learn to look at their neighbours.

    The published positions are vectors of relative distances, one for each of up to `max_span`; here they are
    rotary, which reach as far without a table.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        max_span, ramp: as the mechanism `adaptive_span`.
        dynamic: every token chooses its span (`dynamic_span`), instead of every head.

    Example:
        >>> adaptive_span(max_span=1024).attention
        ('adaptive_span(max_span=1024, ramp=32)',)

    Source: Sukhbaatar et al. 2019, section 3 (the small model of enwik8).
    """
    name = "dynamic_span" if dynamic else "adaptive_span"
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(f"{name}(max_span={max_span}, ramp={ramp})",),
        position="rotary",
        mlp="relu",
        mlp_dim=mlp_dim,
        max_length=max_length,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
