"""Reformer: names, configuration, axial positions, and the attention of its layers.

A layer of hashes is full attention of a shared projection as long as a text fits into one of its chunks, and such texts
are what is read here. In longer ones transformers lets a query see other buckets of its chunk and of the last chunk of
another round, and chunks begin where later tokens put them; no mechanism here is that. `convert` gives such a network
`lsh`, which is strictly causal, and more positions.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from regard import specs
from regard.attention.sparse.pattern import Pattern
from regard.core.errors import CheckpointError, UnsupportedError
from regard.integrations.architectures._base import Architecture, Form, Key, Table, activation, pairs
from regard.integrations.weights import Settings, Stored, Weight
from regard.models import LanguageModel
from regard.models.config import ModelConfig

_PREFIX = "reformer."
_POSITIONS = f"{_PREFIX}embeddings.position_embeddings.embedding.weight"
_AXES = f"{_PREFIX}embeddings.position_embeddings.weights."
_BLOCK = re.compile(r"block\((\d+), (\d+)\)")
_HASHED = "lsh(num_buckets=1, rounds=1)"


def _local(chunk: int, past: int) -> str:
    return f"pattern(rule='block({chunk}, {past})')"


_TABLE = Table(
    "reformer",
    ModelConfig,
    position="learned",
    keys={
        "vocab_size": Key("vocab_size", 320),
        "dim": Key("hidden_size", 256),
        "heads": Key("num_attention_heads", 12),
        "head_dim": Key("attention_head_size", 64),
        "layers": Key("num_hidden_layers", 6, Settings.layers),
        "mlp": Key("hidden_act", "relu", activation),
        "mlp_dim": Key("feed_forward_size", 512),
        "max_length": Key("max_position_embeddings", 4096, Settings.size),
        "norm_eps": Key("layer_norm_eps", 1e-12, Settings.number),
        "dropout": Key("hidden_dropout_prob", 0.05, Settings.number),
    },
    fixed={
        "position_offset": 0,
        "embedding_norm": False,
        "block": "reversible",
        "both_streams": True,
        "norm": "pre",
        "norm_kind": "layer",
        "tied": False,
        "output_bias": True,
        "bias": True,
        "projection_bias": False,
    },
    only={"tie_word_embeddings": False, "local_num_chunks_after": 0},
)


def _config(settings: Settings) -> ModelConfig:
    found = _TABLE.read(settings)
    layers, kinds = found["layers"], settings.get("attn_layers", ["local", "lsh"] * 3)
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"local", "lsh"}:
        settings.problems.append(f"attn_layers must name local or lsh for each of {layers} layers, got {kinds!r}")
        kinds = ["local"] * layers
    settings.choice("is_decoder", [True], False)
    chunk, past = settings.size("local_attn_chunk_length", 64), settings.number("local_num_chunks_before", 1)
    if past != int(past) or past < 0:
        settings.problems.append(f"local_num_chunks_before must be an integer of at least 0, got {past!r}")
    hashed = settings.size("lsh_attn_chunk_length", 64)
    if "lsh" in kinds:  # which drops no weights
        found["max_length"] = min(found["max_length"], hashed)
    else:
        found["attention_dropout"] = settings.number("local_attention_probs_dropout_prob", 0.05)
    attention = tuple(_local(chunk, int(past)) if kind == "local" else _HASHED for kind in kinds)
    return _TABLE.config(settings, found | {"attention": attention})


def _settings(config: ModelConfig) -> dict[str, object]:
    return {
        **_TABLE.settings(config, attention=None),
        "local_attention_probs_dropout_prob": config.attention_dropout,
        "axial_pos_embds": False,
        "is_decoder": True,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }


def _layers(model: LanguageModel) -> dict[str, object]:
    """Their settings of the layers; what theirs cannot be is refused."""
    config, kinds, chunks = model.config, list[str](), set[tuple[str, str]]()
    for spec, mechanism in zip(config.specs, model.mechanisms, strict=True):
        found = _BLOCK.fullmatch(mechanism.pairs().text) if isinstance(mechanism, Pattern) else None
        if str(specs.parse(spec)) != _HASHED and (
            found is None or not isinstance(mechanism, Pattern) or mechanism.scale
        ):
            raise UnsupportedError(
                f"this model cannot be written as reformer: attention={spec}, not {_HASHED} nor {_local(64, 1)}"
            )
        kinds.append("lsh" if found is None else "local")
        chunks |= set() if found is None else {(found[1], found[2])}
    if len(chunks) > 1:
        raise UnsupportedError("this model cannot be written as reformer: its local layers have different chunks")
    if any(bool(one.projections.output.bias.any()) for one in model.layers):
        raise UnsupportedError(
            "this model cannot be written as reformer: its attention has output biases, which learned"
        )
    if model.output is not None and bool(model.output.bias.any()):
        raise UnsupportedError(
            "this model cannot be written as reformer: output.bias, which learned; some releases of "
            "transformers store it and do not add it"
        )
    chunk, past = (int(size) for size in (chunks or {(str(config.max_length), "0")}).pop())
    hashed = {"lsh_attn_chunk_length": config.max_length, "num_buckets": 2, "lsh_attention_probs_dropout_prob": 0.0}
    return {
        "attn_layers": kinds,
        "local_attn_chunk_length": chunk,
        "local_num_chunks_before": past,
        "local_num_chunks_after": 0,
        **hashed,
    }


def _weights(config: ModelConfig) -> list[Weight]:
    weights = [
        Weight("embeddings.table.weight", f"{_PREFIX}embeddings.word_embeddings.weight"),
        Weight("embeddings.position.table", _POSITIONS),
        *pairs([("norm", f"{_PREFIX}encoder.layer_norm")], bias=True),
        Weight("output.weight", "lm_head.decoder.weight"),
        Weight("output.bias", "lm_head.bias"),
    ]
    for at, spec in enumerate(config.specs):
        block, layer = f"blocks.{at}", f"{_PREFIX}encoder.layers.{at}"
        ours, theirs = f"{block}.attention.projections", f"{layer}.attention.self_attention"
        weights += pairs(
            [
                (f"{block}.attention_norm", f"{layer}.attention.layer_norm"),
                (f"{block}.mlp_norm", f"{layer}.feed_forward.layer_norm"),
                (f"{block}.mlp.up", f"{layer}.feed_forward.dense.dense"),
                (f"{block}.mlp.down", f"{layer}.feed_forward.output.dense"),
            ],
            bias=True,
        )
        weights += [
            Weight(f"{ours}.value.weight", f"{theirs}.value.weight"),
            Weight(f"{ours}.output.weight", f"{layer}.attention.output.dense.weight"),
        ]
        if specs.parse(spec).name == "lsh":
            # Theirs compares with keys of length 1 and divides by nothing; ours divides by sqrt(d) besides.
            root = config.key_dim**0.5
            weights.append(Weight(f"{ours}.query.weight", f"{theirs}.query_key.weight", factor=root))
        else:
            weights += [Weight(f"{ours}.{name}.weight", f"{theirs}.{name}.weight") for name in ("query", "key")]
    return weights


def _made(stored: Mapping[str, Stored], config: ModelConfig, settings: Settings) -> dict[str, Stored]:
    """The output bias under one name, and one row for every position, of two axes or of a table of more positions.

    Position p has row p // columns of the first axis beside row p % columns of the second.
    """
    stored = dict(stored)
    # Where a file has both, `lm_head.bias` is a parameter that its network does not read.
    if (bias := stored.pop("lm_head.decoder.bias", None)) is not None:
        stored["lm_head.bias"] = bias
    axes = [stored.pop(f"{_AXES}{at}", None) for at in (0, 1)]
    rows, columns = axes
    if rows is not None and columns is not None:
        if len(rows.shape) != 3 or len(columns.shape) != 3 or (rows.shape[1], columns.shape[0]) != (1, 1):
            raise CheckpointError(
                f"axial positions have shapes {rows.shape} and {columns.shape}, not (n, 1, a), (1, m, b)"
            )
        count, width = rows.shape[0] * columns.shape[1], rows.shape[2] + columns.shape[2]

        def joined() -> Tensor:
            first, second = rows.read(), columns.read()
            at = torch.arange(min(config.max_length, count))
            return torch.cat([first[at // second.shape[1], 0], second[0, at % second.shape[1]]], -1)

        stored[_POSITIONS] = Stored((min(config.max_length, count), width), joined)
    elif (table := stored.get(_POSITIONS)) is not None and len(table.shape) == 2 and table.shape[0] > config.max_length:
        stored[_POSITIONS] = Stored((config.max_length, table.shape[1]), lambda: table.read()[: config.max_length])
    return stored


REFORMER = Architecture(
    name="reformer",
    config=_config,
    settings=_settings,
    forms=(
        Form(
            titles=("ReformerModelWithLMHead",),
            model=LanguageModel,
            weights=_weights,
            derived=(".projections.output.bias", ".rotations"),
            made=_made,
            settings=_layers,
        ),
    ),
    prefix=_PREFIX,
    refused=dict.fromkeys(
        ("ReformerForMaskedLM", "ReformerForSequenceClassification", "ReformerForQuestionAnswering"),
        "whose attention looks ahead, and wraps around the end of the text",
    ),
)
