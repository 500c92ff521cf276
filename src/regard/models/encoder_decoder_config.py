"""The shape of an encoder-decoder, as data. Imports no torch."""

from dataclasses import dataclass, fields

from regard.core.types_of import typed_fields
from regard.models.block_config import per_layer, untied
from regard.models.encoder_config import EncoderConfig, InputConfig


@typed_fields
@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(InputConfig):
    """An encoder, and a decoder that reads it. What is not said of the encoder apart is true of both.

    Raises:
        ConfigError: as `BlockConfig`.

    Example:
        >>> config = EncoderDecoderConfig(layers=6, encoder_layers=12)
        >>> config.encoder.layers, len(config.specs), len(config.cross_specs)
        (12, 6, 6)
    """

    layers: int = 2
    """Blocks of the decoder, each of attention to itself, attention to the encoder, and an MLP."""
    encoder_layers: int | None = None
    """Blocks of the encoder; None: as many as the decoder's."""
    attention: tuple[str, ...] = ("softmax",)
    """The decoder's attention to itself: one specification for all layers, or one per layer."""
    encoder_attention: tuple[str, ...] = ("softmax",)
    """The encoder's attention: one specification for all its layers, or one per layer."""
    cross_attention: tuple[str, ...] = ("softmax",)
    """The decoder's attention to the encoder: one specification for all layers, or one per layer."""
    encoder_position: str | None = None
    """The encoder's position scheme; None: as position."""
    source_vocab_size: int | None = None
    """Number of different source tokens, which then have an embedding table of their own; None: both sides share."""
    tied: bool = True
    """The output layer is the embedding table of the decoder."""
    targets: int | None = None
    """Number of different outputs, where it is not the number of tokens (the levels of a pixel, whose channels are
    different tokens); None: vocab_size."""
    logit_scale: float = 1.0
    """Factor of the hidden states before the output layer: dim^-0.5 in T5 where the output is tied."""
    output_bias: bool = False
    """A bias for every token in the output layer, as in BART."""
    start_token: int = 0
    """The token that the decoder reads first."""
    end_token: int = 1
    """The token that ends a sequence."""

    def problems(self) -> list[str]:
        """Problems of these values, as `BlockConfig`."""
        problems = self._sizes("vocab_size", "source_vocab_size", "encoder_layers", "targets") + super().problems()
        problems += untied(self.targets, self.tied)
        problems += self._specs(
            "encoder_attention", self.layers if self.encoder_layers is None else self.encoder_layers
        )
        problems += self._specs("cross_attention", self.layers)
        for name in ("start_token", "end_token"):
            if not 0 <= getattr(self, name) < max(self.vocab_size, 1):
                problems.append(f"{name} must be a token below vocab_size={self.vocab_size}, got {getattr(self, name)}")
        if self.block != "residual":
            problems.append(f"block must be residual: the decoder reads a source in a third branch, got {self.block!r}")
        if self.depth != "fixed":
            problems.append(f"depth must be fixed: the decoder runs blocks that read a source, got {self.depth!r}")
        if not 0 < self.logit_scale < float("inf"):
            problems.append(f"logit_scale must be positive, got {self.logit_scale}")
        return problems

    @property
    def cross_specs(self) -> tuple[str, ...]:
        """The specification of every layer's attention to the encoder."""
        return per_layer(self.cross_attention, self.layers)

    @property
    def encoder(self) -> EncoderConfig:
        """The encoder's own configuration."""
        shared = {field.name: getattr(self, field.name) for field in fields(InputConfig)}
        specific = {
            "layers": self.layers if self.encoder_layers is None else self.encoder_layers,
            "attention": self.encoder_attention,
            "position": self.position if self.encoder_position is None else self.encoder_position,
            "vocab_size": self.vocab_size if self.source_vocab_size is None else self.source_vocab_size,
        }
        return EncoderConfig(**{**shared, **specific})
