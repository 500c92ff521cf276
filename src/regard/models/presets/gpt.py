"""The GPT-2 decoder."""

from regard.models.config import ModelConfig


def gpt(
    *,
    vocab_size: int = 50257,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    max_length: int = 1024,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """GPT-2 small, 124 million weights: pre-norm blocks, exact softmax attention, learned positions, tied embeddings.

    The other published sizes are (dim, layers, heads) = (1024, 24, 16), (1280, 36, 20), (1600, 48, 25).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `ModelConfig`; `dropout` also drops attention
            weights.

    Example:
        >>> gpt().mlp_width
        3072

    Source: Radford et al. 2019, section 2.3 and table 2; dropout and initial weights as in the released code.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("softmax",),
        position="learned",
        mlp="gelu_tanh",
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        attention_dropout=dropout,
        bias=True,
        seed=seed,
    )
