"""The shape of a model of several modalities, as data. Imports no torch."""

from dataclasses import dataclass

from regard.core.errors import ConfigError
from regard.core.types_of import typed
from regard.models.encoder_config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """One encoder for each modality, fused by an attention vector.

    Raises:
        ConfigError: values that make no sense, all of them at once, one a line.

    Example:
        >>> text, image = EncoderConfig(dim=32), EncoderConfig(dim=32, vocab_size=0, input_dim=16)
        >>> FusionConfig(encoders=(text, image)).dim
        32
    """

    encoders: tuple[EncoderConfig, ...]
    """The encoder of every modality, over tokens or vectors; all of one dim."""
    hidden: int | None = None
    """Width of the network that scores a modality; None: dim."""
    dropout: float = 0.0
    """Probability of dropping an element of the fused vector in training."""
    seed: int = 0
    """Of the fusion's and the output layer's initial weights; every encoder has a seed of its own."""

    @typed
    def __post_init__(self) -> None:
        problems: list[str] = []
        if not self.encoders:
            problems.append("encoders must name at least one modality")
        widths = [encoder.dim for encoder in self.encoders]
        if len(set(widths)) > 1:
            problems.append(f"encoders must agree in dim, which is what they are fused in, got {widths}")
        if self.hidden is not None and self.hidden < 1:
            problems.append(f"hidden must be at least 1, got {self.hidden}")
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout must be in [0, 1), got {self.dropout}")
        if problems:
            raise ConfigError("\n".join(problems))

    @property
    def dim(self) -> int:
        """Width of the vectors that are fused."""
        return self.encoders[0].dim
