"""Depth-adaptive Transformer."""

from typing import Literal

from regard.models.config import ModelConfig


def depth_adaptive(
    *,
    vocab_size: int = 10000,
    dim: int = 512,
    layers: int = 6,
    heads: int = 4,
    mlp_dim: int | None = 1024,
    classifier: Literal["sequence", "multinomial", "geometric"] = "geometric",
    oracle: Literal["likelihood", "correctness"] = "likelihood",
    penalty: float = 0.1,
    smoothing: float = 0.0,
    threshold: float = 0.5,
    max_length: int = 512,
    dropout: float = 0.3,
    seed: int = 0,
) -> ModelConfig:
    """The language model that learns how many blocks each token needs from an oracle that knows its target.

    The published model is an encoder-decoder; here is its decoder without a source, so that `sequence` reads what the
    text was so far. Exits are trained together and share the output layer.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        classifier: who decides, as `confidence` of the depth `early_exit`.
        oracle, penalty, smoothing, threshold: as the depth `early_exit`.

    Example:
        >>> depth_adaptive(classifier="multinomial", penalty=0.2).depth
        "early_exit(threshold=0.5, confidence='multinomial', exits='aligned', penalty=0.2)"

    Source: Elbayad et al. 2020, Depth-Adaptive Transformer, sections 3 and 4 (the model of IWSLT'14).
    """
    learnt = f"exits='aligned', penalty={penalty}"
    learnt += "" if oracle == "likelihood" else f", oracle={oracle!r}"
    learnt += f", smoothing={smoothing}" if smoothing else ""
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        depth=f"early_exit(threshold={threshold}, confidence={classifier!r}, {learnt})",
        position="sinusoidal",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="post",
        bias=True,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
