"""The Extended Transformer Construction."""

from dataclasses import replace

from regard.models.block_config import Projections
from regard.models.encoder_config import EncoderConfig
from regard.models.presets.bert import bert


def etc(
    *,
    vocab_size: int = 30522,
    dim: int = 768,
    layers: int = 12,
    heads: int = 12,
    window: int = 84,
    max_distance: int = 12,
    num_global: int = 0,
    projections: Projections = "all",
    cpc_weight: float = 0.25,
    max_length: int = 4608,
    dropout: float = 0.1,
    seed: int = 0,
) -> EncoderConfig:
    """BERT base over two streams: global tokens that summarise sentences, and 4096 tokens of text after them.

    Where a token is, is known from relative labels alone. Which tokens are global and what they summarise is said by
    marks. The large model is (dim, layers, heads, window, max_distance) = (1024, 24, 16, 169, 24).

    Args:
        vocab_size, dim, layers, heads, max_length, dropout, seed: as `EncoderConfig`. No attention weights are dropped
            unless `attention_dropout` says so.
        window: the paper's local radius.
        max_distance: further distances share a label.
        num_global: the first tokens that are global without a mark.
        projections: of queries, keys and values; all: the streams share theirs, as in the published shared model;
            separate: four sets.
        cpc_weight: weight of the loss of hidden sentences beside that of masked tokens; published 0.2 to 0.8.

    Example:
        >>> etc().attention, etc().position
        (('etc(window=84, max_distance=12, num_global=0)',), 'none')

    Source: Ainslie et al. 2020, sections 3 and 4, appendix A.
    """
    base = bert(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        max_length=max_length,
        dropout=dropout,
        seed=seed,
    )
    return replace(
        base,
        attention=(f"etc(window={window}, max_distance={max_distance}, num_global={num_global})",),
        position="none",
        token_types=1,
        projections=projections,
        cpc_weight=cpc_weight,
        attention_dropout=0.0,
    )
