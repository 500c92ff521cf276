"""The shape of a decoder language model, as data. Imports no torch, so that command lines answer at once."""

from dataclasses import dataclass

from regard.models.block_config import BlockConfig, MlpKind, NormKind, NormPlace, untied

__all__ = ["BlockConfig", "MlpKind", "ModelConfig", "NormKind", "NormPlace"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(BlockConfig):
    """A causal Transformer decoder.

    Raises:
        ConfigError: as `BlockConfig`.

    Example:
        >>> ModelConfig(layers=3, attention=("linear", "linear", "softmax")).specs
        ('linear', 'linear', 'softmax')
        >>> ModelConfig(dim=96, heads=4).key_dim
        24
    """

    vocab_size: int = 256
    """Number of different tokens; 256 reads bytes."""
    tied: bool = True
    """The output layer is the embedding table."""
    targets: int | None = None
    """Number of different outputs, where it is not the number of tokens (the levels of a pixel, whose channels are
    different tokens); None: vocab_size."""
    short_convolution: int = 0
    """Width of a causal depthwise convolution over the embeddings; 0: none. It lets one layer compare a token with the
    token before it, which associative recall needs."""

    def problems(self) -> list[str]:
        """What makes no sense."""
        found = self._sizes("vocab_size", "targets") + super().problems() + untied(self.targets, self.tied)
        if self.short_convolution < 0 or self.short_convolution == 1:
            found.append(
                f"short_convolution must be 0 (none) or at least 2 (a token and its past), got {self.short_convolution}"
            )
        return found
