"""The linear Transformer, a recurrent network in disguise."""

from typing import Literal

from regard.models.config import ModelConfig


def linear_transformer(
    *,
    vocab_size: int = 256,
    dim: int = 256,
    layers: int = 8,
    heads: int = 8,
    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] = "elu_plus_one",
    max_length: int = 784,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The image generator of the paper (MNIST, 784 pixels of 256 values): linear attention with elu + 1, O(length).

    Post-norm blocks with ReLU and dropout 0.1 as in the authors' library. The paper predicts a mixture of logistics;
    here the output is a categorical over the pixel values, which is also what text needs. Its positions are
    absolute; the sinusoids have no table, so that sequences may be longer than those in training. An encoder is
    `build("bert", attention=("linear",), attention_dropout=0.0)`.

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `ModelConfig`.
        feature_map: phi of queries and keys, as the mechanism `linear`.

    Example:
        >>> linear_transformer().attention
        ("linear(feature_map='elu_plus_one')",)

    Source: Katharopoulos et al. 2020, section 4.2.1 (CIFAR-10: 16 layers, 3,072 positions).
    """
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        attention=(f"linear(feature_map={feature_map!r})",),
        position="sinusoidal",
        mlp="relu",
        norm="post",
        norm_kind="layer",
        max_length=max_length,
        tied=False,
        dropout=dropout,
        bias=True,
        seed=seed,
    )
