"""Universal Transformer."""

from typing import Literal

from regard.models.config import ModelConfig


def universal_transformer(
    *,
    vocab_size: int = 32768,
    dim: int = 1024,
    heads: int = 16,
    mlp_dim: int | None = None,
    steps: int = 8,
    halting: bool = True,
    transition: Literal["mlp", "convolution"] = "mlp",
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """The language model that applies one block again and again, as often as each token asks for.

    Post-norm, so that the coordinates of slot and step are part of the residual stream. The transition is an MLP with
    ReLU, or separable convolutions with as many channels. Sizes are ours.

    Args:
        vocab_size, dim, heads, mlp_dim, max_length, dropout, seed: as `ModelConfig`.
        steps, halting, transition: as the depth `universal`.

    Example:
        >>> universal_transformer(steps=6).depth
        'universal(steps=6)'
        >>> universal_transformer(halting=False).depth
        'universal(steps=8, halting=False)'
        >>> universal_transformer(transition="convolution", mlp_dim=2048).depth
        "universal(steps=8, transition='convolution', width=2048)"

    Source: Dehghani et al. 2019, Universal Transformers, section 2.
    """
    convolves = transition == "convolution"
    further = "" if halting else ", halting=False"
    further += f", transition={transition!r}" if convolves else ""
    further += f", width={mlp_dim}" if convolves and mlp_dim is not None else ""
    return ModelConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=1,
        heads=heads,
        depth=f"universal(steps={steps}{further})",
        position="none",
        mlp="none" if convolves else "relu",
        mlp_dim=None if convolves else mlp_dim,
        norm="post",
        bias=True,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
