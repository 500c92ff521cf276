"""SPALM."""

from dataclasses import replace

from regard.models.config import ModelConfig
from regard.models.presets.transformer_xl import transformer_xl


def spalm(
    *,
    vocab_size: int = 267735,
    dim: int = 410,
    layers: int = 16,
    heads: int = 10,
    mlp_dim: int | None = 2100,
    max_length: int = 150,
    memory_length: int = 150,
    neighbours: int = 4,
    neighbour_temperature: float | None = None,
    dropout: float = 0.1,
    seed: int = 0,
) -> ModelConfig:
    """A decoder with the memory of Transformer-XL beside a datastore: a gate mixes in what came after similar contexts.

    The output layer reads z = (1 - g) m + g h: h the hidden state, m the embeddings of the neighbours' tokens, weighted
    by a softmax of their products with h, g = sigmoid(w . h). Neighbours are found by another decoder, which made the
    datastore and is not trained: a run takes `--datastore` and `--datastore-model`, and evaluation and generation read
    them too. The shape around it is that of `transformer_xl`, and 4 neighbours are a choice of ours.

    Args:
        vocab_size, dim, layers, heads, mlp_dim, dropout, seed: as `ModelConfig`.
        max_length, memory_length: as `transformer_xl`.
        neighbours, neighbour_temperature: as `ModelConfig`; with a temperature, distances count too.

    Example:
        >>> spalm().neighbours, spalm().memory
        (4, 'recent(length=150)')

    Source: Yogatama, de Masson d'Autume & Kong 2021, section 2; shape: Dai et al. 2019, WikiText-103 base.
    """
    base = transformer_xl(
        vocab_size=vocab_size,
        dim=dim,
        layers=layers,
        heads=heads,
        mlp_dim=mlp_dim,
        max_length=max_length,
        memory_length=memory_length,
        dropout=dropout,
        seed=seed,
    )
    return replace(base, neighbours=neighbours, neighbour_temperature=neighbour_temperature)
