"""Transformer-XL."""

from regard.models.config import ModelConfig


def transformer_xl(
    *,
    vocab_size: int = 267735,
    dim: int = 410,
    layers: int = 16,
    heads: int = 10,
    mlp_dim: int | None = 2100,
    max_length: int = 150,
    memory_length: int = 150,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The WikiText-103 base decoder: segments, each of which sees the hidden states of the one before in every layer.

    A layer reaches `memory_length` positions back, the model as many times `layers`. The two biases of the position
    scheme are shared by all layers. Published with adaptive embeddings; here it is one table. A longer memory may be
    used in evaluation than in training (published: 640).

    Args:
        vocab_size, dim, layers, heads, mlp_dim, dropout, seed: as `ModelConfig`.
        max_length: tokens of a segment.
        memory_length: hidden states that a layer remembers.

    Example:
        >>> transformer_xl().memory, transformer_xl().max_length
        ('recent(length=150)', 150)

    Source: Dai et al. 2019, section 3 and appendix; sizes of the authors' WikiText-103 base model.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("softmax",),
        position="transformer_xl",
        memory=f"recent(length={memory_length})",
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
