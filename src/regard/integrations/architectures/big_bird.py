"""BigBird: names, configuration, and the random blocks that its published networks were trained with."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard import specs
from regard.attention.sparse.bigbird import Bigbird
from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture, Key, activation
from regard.integrations.architectures._encoders import (
    MASKED,
    Network,
    encoder_config,
    encoder_forms,
    encoder_settings,
    encoder_table,
    mlp_activation,
)
from regard.integrations.weights import Settings
from regard.models import Encoder, EncoderConfig
from regard.patterns.picks import visible

_FULL, _SPARSE = "original_full", "block_sparse"
_PLANNED_TOKENS = 1024
"""their random blocks lie among the first so many tokens"""


_TABLE = encoder_table(
    "big_bird",
    keys={
        "mlp": Key("hidden_act", "gelu_new", activation),
        "vocab_size": Key("vocab_size", 50358),
        "max_length": Key("max_position_embeddings", 4096),
    },
)


def _config(settings: Settings) -> EncoderConfig:
    kind = settings.choice("attention_type", [_SPARSE, _FULL], _SPARSE)
    size, count = settings.size("block_size", 64), settings.number("num_random_blocks", 3)
    if count != int(count) or count < 0:
        settings.problems.append(f"num_random_blocks must be an integer of at least 0, got {count!r}")
    rescaled, bias = settings.flag("rescale_embeddings", False), settings.flag("use_bias", True)
    config = encoder_config(_TABLE, settings, projection_bias=None if bias else False)
    config = replace(config, embedding_scale=config.dim**0.5 if rescaled else None)
    if kind == _FULL:
        return config
    spec = f"bigbird(block_size={size}, num_random={int(count)})"
    return replace(config, attention=(spec,), attention_dropout=0.0)


def _settings(config: EncoderConfig) -> dict[str, object]:
    root = config.dim**0.5
    settings = encoder_settings(
        _TABLE,
        config,
        attention=None,
        embedding_scale=(None, 1.0, root),
        projection_bias=(None, True, False),
        projections="all",
    )
    return {
        **settings,
        "pad_token_id": 0,
        "rescale_embeddings": config.embedding_scale == root,
        "use_bias": config.projection_bias is not False,
    }


def published_blocks(
    heads: int, blocks: int, count: int, *, layer: int, size: int
) -> Int[Tensor, "heads blocks picks"]:
    """The random key blocks of every query block that BigBird's authors draw in training; -1: none.

    Theirs are those of transformers at 1,024, 3,072 and 4,096 tokens in training: drawn for the longest sequence from
    NumPy's generator, seeded with the number of the layer, mostly among the first 1,024 tokens. Blocks that are visible
    already, which theirs count twice, are left out.

    Args:
        heads, blocks: how many.
        count: picks for a query block.
        layer: number of the layer.
        size: positions in a block.

    Source: Zaheer et al. 2020, appendix D, and the released code (bigbird_block_rand_mask).
    """
    draw = np.random.RandomState(layer)  # the generator of old, whose stream NumPy keeps as it was
    picks = np.full((heads, blocks, count), -1)
    for head in range(heads):
        for row in range(1, blocks - 1):
            drawn = draw.permutation(_candidates(row, blocks, size))[:count]
            picks[head, row, : len(drawn)] = drawn
    picked, seen = torch.from_numpy(picks), visible(blocks, 1, blocks - 1)
    return picked.masked_fill((picked[..., None] == seen[:, None]).any(-1), -1)


def _candidates(row: int, blocks: int, size: int) -> np.ndarray:
    """The blocks that theirs are drawn from; beside the last rows, visible ones are among them."""
    middle = np.arange(1, blocks - 1)
    last = _PLANNED_TOKENS // size - 1 if 2 * size < _PLANNED_TOKENS else blocks - 1
    if row <= 2:
        return middle[row + 1 : last]
    if row >= blocks - 3:
        return middle[:last]
    start = min(row - 2, last)
    if row - 2 > last or row + 1 == last:
        return middle[:start]
    return np.concatenate([middle[:start], middle[row + 1 : last]])


def _encoder(config: EncoderConfig) -> Encoder:
    encoder = Encoder(config)
    for layer, each in enumerate(encoder.mechanisms):
        if isinstance(each, Bigbird):
            each.place(_blocks_of(each, layer))
    return encoder


def _blocks_of(each: Bigbird, layer: int) -> Tensor:
    heads, blocks, count = each.picks.shape
    return published_blocks(heads, blocks, count, layer=layer, size=each.block_size)


def _pattern(network: Network) -> dict[str, object]:
    encoder = network if isinstance(network, Encoder) else network.encoder
    used = sorted({str(specs.parse(spec)) for spec in encoder.config.attention})
    if used == ["softmax"]:
        return {"attention_type": _FULL}
    wanted = {"form": "itc", "num_global": 1, "last_global": True, "scale": None}
    first = encoder.mechanisms[0]
    for layer, each in enumerate(encoder.mechanisms):
        if not isinstance(each, Bigbird) or {name: getattr(each, name) for name in wanted} != wanted or len(used) > 1:
            raise UnsupportedError(
                f"this model cannot be written as big_bird: attention={', '.join(used)}, not softmax, nor one bigbird "
                "for all layers with one global block at either end and no scale"
            )
        if not each.picks.equal(_blocks_of(each, layer)):
            raise UnsupportedError(
                "this model cannot be written as big_bird: its random blocks are its own, and transformers draws others"
            )
    assert isinstance(first, Bigbird)
    return {"attention_type": _SPARSE, "block_size": first.block_size, "num_random_blocks": first.num_random}


BIG_BIRD = Architecture(
    name="big_bird",
    config=_config,
    settings=_settings,
    forms=encoder_forms(
        "bert.",
        "BigBird",
        masked=MASKED,
        pooler="pooler",
        transform=mlp_activation,
        pooled=mlp_activation,
        encoder=_encoder,
        derived=(".picks",),
        settings=_pattern,
    ),
    prefix="bert.",
)
