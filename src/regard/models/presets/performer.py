"""The Performer: softmax attention by positive random features."""

from typing import Literal

from regard.models.config import ModelConfig


def performer(
    *,
    vocab_size: int = 256,
    dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_dim: int | None = None,
    num_features: int = 256,
    feature_map: Literal["positive", "hyperbolic", "trigonometric", "relu"] = "positive",
    max_length: int = 12288,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The ImageNet64 model of the paper (64 x 64 x 3 pixel values in a row), causal FAVOR+ attention, O(length).

    The paper's deeper variant has 12 layers. Positions are sinusoidal, without a table. An encoder is
    `build("bert", attention=("performer(num_features=256)",), attention_dropout=0.0)`.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        num_features: random features per head; the error against softmax falls as it grows.
        feature_map: the estimates of softmax, and relu, the paper's other kernel, as the mechanism `performer`.

    Example:
        >>> performer(num_features=64).attention
        ("performer(num_features=64, feature_map='positive')",)

    Source: Choromanski et al. 2021, section 4.4: (heads, mlp_dim, dim) = (8, 2048, 512), 6 or 12 layers.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(f"performer(num_features={num_features}, feature_map={feature_map!r})",),
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
