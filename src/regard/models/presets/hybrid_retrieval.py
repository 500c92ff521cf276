"""Hybrids of exact and linear attention, for exact retrieval at a cost near the linear one."""

from typing import Literal

from regard.errors import ConfigError, nearest
from regard.models.config import ModelConfig

_COMBINATIONS = ("layers", "window", "gate")


def hybrid_retrieval(
    *,
    vocab_size: int = 256,
    dim: int = 256,
    layers: int = 8,
    heads: int = 8,
    combine: Literal["layers", "window", "gate"] = "layers",
    linear: str | None = None,
    period: int | None = None,
    window: int | None = None,
    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] | None = None,
    short_convolution: int = 4,
    max_length: int = 2048,
    dropout: float = 0.0,
    seed: int = 0,
) -> ModelConfig:
    """A pre-norm decoder of exact and linear attention together: by layers, or by distance in every layer.

    `layers`: every `period`-th layer is softmax and finds any token again, at the price of a state that grows; the
    others are `linear`. `window`: in every layer softmax over the last `window` tokens and linear attention beyond,
    under one normaliser, with a constant state: exact retrieval reaches as far as the window. `gate`: the same, as two
    averages that a gate mixes. The shape is that of `linear_transformer`, as the article gives none; a convolution over
    the embeddings lets a layer compare a token with those before it, which retrieval needs.

    Args:
        vocab_size, dim, layers, heads, short_convolution, max_length, dropout, seed: as `ModelConfig`.
        combine: as said.
        linear: specification of the linear layers, of `layers` only; None: linear.
        period: the last of so many layers is exact, of `layers` only; None: 2.
        window, feature_map: as the mechanism `local_linear`, of `window` and `gate` only; None: 128, elu_plus_one.

    Raises:
        ConfigError: a way of combining that does not exist, an option of another one, or a period that leaves no exact
            or no linear layer.

    Example:
        >>> hybrid_retrieval(layers=4).attention
        ('linear', 'softmax', 'linear', 'softmax')
        >>> hybrid_retrieval(combine="window", window=64).attention
        ("local_linear(window=64, feature_map='elu_plus_one', combine='share')",)

    Source: the hybrids of the exact-retrieval article; shape: Katharopoulos et al. 2020, section 4.2.1.
    """
    if combine not in _COMBINATIONS:
        raise ConfigError(f"hybrid_retrieval cannot combine by {combine!r}: {nearest(combine, _COMBINATIONS)}")
    by_layers, by_distance = {"linear": linear, "period": period}, {"window": window, "feature_map": feature_map}
    foreign, owner = (by_distance, "'window' or 'gate'") if combine == "layers" else (by_layers, "'layers'")
    for name, value in foreign.items():
        if value is not None:
            raise ConfigError(
                f"hybrid_retrieval: {name} belongs to combine={owner}, got {name}={value!r}, {combine=}; leave it out"
            )
    if combine == "layers":
        linear, period = "linear" if linear is None else linear, 2 if period is None else period
        if not 2 <= period <= layers:
            raise ConfigError(
                f"hybrid_retrieval needs a period from 2 to the number of layers, {layers}, to have both kinds of "
                f"layers, got {period}; choose another period, or combine='window'"
            )
        attention = tuple("softmax" if (at + 1) % period == 0 else linear for at in range(layers))
    else:
        window, feature_map = 128 if window is None else window, feature_map or "elu_plus_one"
        shared = "share" if combine == "window" else "gate"
        attention = (f"local_linear(window={window}, feature_map={feature_map!r}, combine={shared!r})",)
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=attention,
        position="sinusoidal",
        mlp="gelu",
        norm="pre",
        norm_kind="layer",
        max_length=max_length,
        tied=True,
        dropout=dropout,
        bias=True,
        short_convolution=short_convolution,
        seed=seed,
    )
