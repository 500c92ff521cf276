"""Attention maps of every layer of a network on one text."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Int64

from regard.core.errors import ConfigError, UnsupportedError
from regard.models import LanguageModel
from regard_lab.attention_maps.capture import Readable, Watched, watch
from regard_lab.attention_maps.reduction import LayerMaps, NoMaps, reduce


def attention_maps(
    model: Readable,
    tokens: Sequence[int] | Int64[np.ndarray, " length"],
    *,
    block: int = 1,
    pairs: int = 16,
    tell: Callable[[str], None] = lambda line: None,
) -> list[LayerMaps | NoMaps]:
    """The attention maps of every layer, from the calls that the layers make: their positions, biases and inputs.

    The matrices are what `regard.weights` finds, so that mechanisms which never make any have them too. No tensor of
    length x length is made.

    Args:
        model: a decoder or an encoder; put into evaluation mode meanwhile.
        tokens: of one text. An encoder with a token in front (`cls_token`) has one position more.
        block: tokens in a block of `LayerMaps.cells`.
        pairs: how many of the largest weights of a head.
        tell: called with a line about each layer.

    Raises:
        ConfigError: a block or a number of pairs below 1.
        UnsupportedError: a model with a memory, whose keys are not one text's.
        InputError, LimitError: as the model.

    Example:
        >>> from regard.models.config import ModelConfig
        >>> model = LanguageModel(ModelConfig(dim=16, heads=2, layers=2, attention=("linear", "softmax")))
        >>> [(each.mechanism, each.cells.shape) for each in attention_maps(model, [104, 101, 121])]
        [('linear', (2, 3, 3)), ('softmax', (2, 3, 3))]
    """
    if block < 1 or pairs < 1:
        raise ConfigError(f"block and pairs must be at least 1, got {block} and {pairs}")
    if isinstance(model, LanguageModel) and model.config.remembers:
        raise UnsupportedError(
            f"a model with memory={model.config.memory!r} reads in segments, whose keys are not one text's; attention "
            "maps are for models without a memory"
        )
    specs, found = model.config.specs, list[LayerMaps | NoMaps]()

    def each(call: Watched) -> None:
        tell(f"layer {call.layer + 1} of {len(specs)}: {specs[call.layer]}")
        found.append(reduce(call, specs[call.layer], block=block, pairs=pairs))

    device = next(model.parameters()).device
    watch(model, torch.tensor(np.asarray(tokens, np.int64), device=device)[None], each)
    return found
