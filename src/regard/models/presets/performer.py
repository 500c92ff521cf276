"""The Performer: softmax attention by positive random features."""

from regard.models.config import ModelConfig


def performer(
    *,
    vocab_size: int = 256,
    dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_dim: int | None = None,
    num_features: int = 256,
    max_length: int = 12288,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The ImageNet64 model of the paper (64 x 64 x 3 pixel values in a row), causal FAVOR+ attention, O(length).

    The paper's deeper variant has 12 layers. Positions are sinusoidal, without a table.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        num_features: random features per head; the error against softmax falls as it grows.

    Example:
        >>> performer(num_features=64).attention
        ('performer(num_features=64)',)

    Source: Choromanski et al. 2021, section 4.4: (heads, mlp_dim, dim) = (8, 2048, 512), 6 or 12 layers.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(f"performer(num_features={num_features})",),
        position="sinusoidal",
        mlp="gelu",
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
