"""The decoder that extrapolates by linear biases."""

from regard.models.config import ModelConfig


def alibi(
    *,
    vocab_size: int = 267744,
    dim: int = 1024,
    layers: int = 16,
    heads: int = 8,
    mlp_dim: int | None = None,
    max_length: int = 512,
    dropout: float = 0.3,
    seed: int = 0,
) -> ModelConfig:
    """The WikiText-103 decoder of the paper: pre-norm, ReLU, and no positions but a penalty for distance in each head.

    Published with a vocabulary of words in adaptive embeddings; here it is one table. It may be read at lengths beyond
    `max_length`, which nothing in it depends on.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`; attention weights are
            dropped a third as often.

    Example:
        >>> alibi().position
        'alibi'

    Source: Press et al. 2022, section 4.1, on the model of Baevski and Auli 2019, section 4.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("softmax",),
        position="alibi",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        attention_dropout=dropout / 3,
        bias=True,
        seed=seed,
    )
