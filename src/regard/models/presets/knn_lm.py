"""kNN-LM."""

from regard.models.config import ModelConfig


def knn_lm(
    *,
    vocab_size: int = 267744,
    dim: int = 1024,
    layers: int = 16,
    heads: int = 16,
    mlp_dim: int | None = 4096,
    max_length: int = 3072,
    dropout: float = 0.3,
    attention_dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The WikiText-103 decoder that kNN-LM looks things up for: train it, then put a datastore beside it.

    Neighbours are no part of its weights or its training. `regard knn build` makes the datastore with the trained run,
    `regard knn sweep` finds their weight, and `regard evaluate` and `regard generate` mix them in with `--datastore`;
    in Python `regard.retrieval.KnnLm` stands around it. Any other decoder whose last block has an MLP serves as well,
    published weights among them. Published with adaptive embeddings; here it is one table.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, attention_dropout, seed: as `ModelConfig`.

    Example:
        >>> knn_lm(layers=2, dim=64, heads=2).norm  # keys are the input of the last MLP after its norm
        'pre'

    Source: Khandelwal et al. 2020, section 4; the network of Baevski & Auli 2019.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=("softmax",),
        position="sinusoidal",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        attention_dropout=attention_dropout,
        bias=True,
        seed=seed,
    )
