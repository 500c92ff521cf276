"""Random feature attention (RFA) language model."""

from typing import Literal

from regard.models.config import ModelConfig


def rfa(
    *,
    vocab_size: int = 267735,
    dim: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_dim: int | None = None,
    num_features: int = 128,
    feature_map: Literal["trigonometric", "arc_cosine"] = "trigonometric",
    gate: bool = True,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The small language model of WikiText-103, gated, O(length): decoding keeps one sum per head and no cache.

    The big one is (dim, layers, heads) = (1024, 16, 16). Published embeddings are narrower for rarer words, which makes
    38 million weights; here they are one table of `dim` columns, tied to the output. Positions are sinusoidal, without
    a table. An encoder is `build("bert", attention=("rfa",), attention_dropout=0.0)`; it has no gate.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        num_features: features per head, 2 D of the paper, whose D is 64.
        feature_map: the paper's two kernels, the Gaussian and the arc-cosine one.
        gate: the recency gate.

    Example:
        >>> rfa(gate=False).attention
        ("rfa(num_features=128, feature_map='trigonometric', gate=False)",)

    Source: Peng et al. 2021, section 4.1 and its hyperparameters in the appendix.
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(f"rfa(num_features={num_features}, feature_map={feature_map!r}, gate={gate})",),
        position="sinusoidal",
        mlp="relu",
        mlp_dim=mlp_dim,
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
