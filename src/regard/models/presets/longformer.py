"""The Longformer."""

from dataclasses import replace

from regard.errors import ConfigError
from regard.models.encoder_config import EncoderConfig
from regard.models.presets.roberta import roberta


def longformer(
    *,
    vocab_size: int = 50265,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    window: int = 256,
    last_window: int | None = None,
    num_global: int = 1,
    max_length: int = 4096,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """RoBERTa base with windows of 512 positions, and global tokens that have projections of their own.

    Windows may grow from `window` in the first layer to `last_window` in the last one, by the same factor from layer to
    layer, as in the published models of characters: there from 32 to 512. Those are decoders, whose configuration takes
    the specifications as they are. The large model is (dim, layers, heads) = (1024, 24, 16).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`. No attention weights are dropped
            unless `attention_dropout` says so.
        window: keys on either side, half of the published number; in a decoder that many past keys.
        last_window: of the last layer; None: all layers have `window`.
        num_global: the first tokens that are global without a mark. Published are marks alone, on the first token in
            classification.

    Raises:
        ConfigError: windows below 1.

    Example:
        >>> longformer().attention, longformer().projections
        (('longformer(window=256, num_global=1)',), 'global')
        >>> from regard.models.config import ModelConfig
        >>> grown = longformer(layers=3, window=32, last_window=512, num_global=0).attention
        >>> ModelConfig(layers=3, attention=grown).specs[1]
        'longformer(window=128, num_global=0)'

    Source: Beltagy et al. 2020, sections 3.1, 4.2 (windows that grow) and 5 (the encoder).
    """
    ends = (window, window if last_window is None else last_window)
    if min(ends) < 1:
        raise ConfigError(f"longformer needs windows of at least 1, got window={window}, last_window={last_window}")
    sizes = [round(ends[0] * (ends[1] / ends[0]) ** (at / max(layers - 1, 1))) for at in range(layers)]
    base = roberta(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    specs = tuple(f"longformer(window={size}, num_global={num_global})" for size in sizes)
    return replace(
        base,
        attention=specs if last_window is not None else specs[:1],
        attention_dropout=0.0,
        projections="global",
    )
