"""BlockBERT."""

from dataclasses import replace

from regard.errors import ConfigError
from regard.models.encoder_config import EncoderConfig
from regard.models.presets.bert import bert


def blockbert(
    *,
    vocab_size: int = 30522,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    blocks: int = 2,
    shifted: int = 2,
    max_length: int = 512,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """BERT base whose heads see one block of the sequence each: most their own, some another one.

    A block is max_length / blocks positions. Of the heads `shifted` see the next block, as many the one after it, and
    so on through the blocks; those that remain see their own. Published: 10 and 2 of 12 heads for two blocks, 8, 2 and
    2 for three. Sequences of 1024 have three.

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`. No attention weights are dropped
            unless `attention_dropout` says so.
        blocks: n of the paper.
        shifted: heads for every permutation but the identity.

    Raises:
        ConfigError: fewer than one head for every permutation.

    Example:
        >>> blockbert(heads=4, shifted=1, dim=64).attention
        ('blockwise(blocks=2, permutations=((0, 1), (0, 1), (0, 1), (1, 0)))',)

    Source: Qiu et al. 2020, sections 3.1 and 4.1.
    """
    unshifted = heads - shifted * (blocks - 1)
    if blocks < 1 or shifted < 1 or unshifted < 1:
        raise ConfigError(
            f"blockbert needs at least 1 block and 1 head for every permutation, got heads={heads}, blocks={blocks}, "
            f"shifted={shifted}: {unshifted} would see their own block; lower blocks or shifted"
        )
    counts = [unshifted, *[shifted] * (blocks - 1)]
    maps = tuple(
        tuple((block + shift) % blocks for block in range(blocks)) for shift, n in enumerate(counts) for _ in range(n)
    )
    base = bert(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    return replace(base, attention=(f"blockwise(blocks={blocks}, permutations={maps})",), attention_dropout=0.0)
