"""The Transformer of gated attention units (GAU)."""

from typing import Literal

from regard.models.config import ModelConfig


def gau(
    *,
    vocab_size: int = 32000,
    dim: int = 768,
    layers: int = 24,
    heads: int = 1,
    head_dim: int = 128,
    value_dim: int | None = None,
    activation: Literal["relu_squared", "laplace"] = "relu_squared",
    normaliser: Literal["const", "visible"] = "const",
    unit_gain: float | None = 1.0,
    max_length: int = 512,
    dropout: float = 0.0,
    seed: int = 0,
) -> ModelConfig:
    """A causal language model of gated attention units, which are attention and MLP in one: two stand for one layer.

    One head of width 128 with values twice as wide as the hidden states, and a squared ReLU in place of the softmax.
    Positions are rotary; the paper adds a learned bias by distance, which is left out. Public codes disagree on what
    the weights are divided by (see `relu_squared`). To divide by the length of the call leaks the future: the mechanism
    `regard_lab.published.relu_squared_published:ReluSquaredPublished` does it.

    Gains of queries and keys start at 1, as in bert4keras; the paper and FLASH-pytorch draw them near 0, which
    `unit_gain=None` does: a short training then learns less (see docs/claims.md).

    Args:
        vocab_size, dim, layers, heads, head_dim, value_dim, unit_gain, max_length, dropout, seed: as `ModelConfig`.
        activation, normaliser: as the mechanism `relu_squared`.

    Example:
        >>> gau(layers=4).block, gau().attention
        ('gated_unit', ("relu_squared(activation='relu_squared', normaliser='const')",))

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 2; shape: its base model, of BERT base's size.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        value_dim=value_dim,
        attention=(f"relu_squared(activation={activation!r}, normaliser={normaliser!r})",),
        position="rotary",
        block="gated_unit",
        unit_gain=unit_gain,
        mlp="none",
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
