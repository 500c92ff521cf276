"""A network with other attention, more positions or a memory, from the weights that it has."""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.attention.sparse.etc import Etc
from regard.catalog import describe
from regard.core.errors import UnsupportedError
from regard.integrations._shape import Shape
from regard.integrations.weights import listed, settle
from regard.memory import Memory
from regard.models import Classifier, Encoder, EncoderConfig, LanguageModel, MaskedLanguageModel, ModelConfig, Regressor
from regard.models.block_config import Projections
from regard.position.learned import Learned

_Model = LanguageModel | Encoder | MaskedLanguageModel | Classifier | Regressor
_GLOBAL = re.compile(r"(.*)\.global_rows\.(query|key|value)(?:_l2g|_g2g)?\.(weight|bias)")


def converted(
    model: nn.Module,
    attention: Sequence[str] | None,
    *,
    max_length: int | None,
    projections: Projections | None,
    memory: str | Sequence[str] | None = None,
) -> nn.Module:
    """The same network with other attention, more positions or a memory; `model` stays as it is.

    Every weight is copied. What the network has no values for begins as follows: rows of a longer position table repeat
    the old ones, as Longformer's authors extended RoBERTa's; projections of global tokens are copies of the ordinary
    ones; the labels of `etc` are 0; a memory's own weights are those of a new one, but where the network has the like.
    So it computes what it did, as long as everything is visible that was, and no more.

    Args:
        model: a decoder or an encoder, bare or with a head.
        attention: one specification for all layers, or one for each; None: its own.
        max_length: longest sequence; None: its own.
        projections: as `BlockConfig`; None: its own.
        memory: as `ModelConfig`, of a decoder; None: its own.

    Raises:
        ConfigError: unknown names or options, wrong numbers; a memory beside absolute positions.
        UnsupportedError: another kind of model, a memory of an encoder, a mechanism that cannot stand there, one with
            weights that the network has no values for, or one that leaves weights of the network without use.

    Source: Beltagy et al. 2020, section 5.
    """
    if not isinstance(model, _Model):
        raise UnsupportedError(
            f"the attention of {type(model).__name__} cannot be replaced, only that of decoders, of encoders, and of "
            "encoders with a head"
        )
    old = model if isinstance(model, LanguageModel | Encoder) else model.encoder
    config = _config(old.config, attention, max_length, projections)
    if memory is not None:
        if not isinstance(config, ModelConfig):
            raise UnsupportedError(
                f"a memory is of earlier segments, which {type(model).__name__}, an encoder, has not: leave it out"
            )
        config = replace(config, memory=memory if isinstance(memory, str) else tuple(memory))
    new = replace(Shape.of(model), config=config).built().to(next(model.parameters())).train(model.training)
    _fill(model, new, offset=config.position_offset if isinstance(config, EncoderConfig) else 0)
    return new


def _config(
    config: ModelConfig | EncoderConfig,
    attention: Sequence[str] | None,
    max_length: int | None,
    projections: Projections | None,
) -> ModelConfig | EncoderConfig:
    # Undeclared dropout is refused at build; what an evaluated network drops in training is no part of it.
    config = replace(
        config,
        attention=config.attention if attention is None else tuple(attention),
        max_length=config.max_length if max_length is None else max_length,
        projections=config.projections if projections is None else projections,
    )
    drops = all(describe(spec).supports.dropout for spec in config.specs)
    return config if drops else replace(config, attention_dropout=0.0)


def _fill(old: nn.Module, new: nn.Module, *, offset: int) -> None:
    """Every weight of the new model from those of the old one."""
    weights, wanted = old.state_dict(), new.state_dict()
    tables = {f"{path}.table" for path, module in new.named_modules() if isinstance(module, Learned)}
    labels = {f"{path}.labels" for path, module in new.named_modules() if isinstance(module, Etc)}
    drawn = set(dict(new.named_buffers())) | _remembering(new)
    spare = _remembering(old)
    without = [name for name in dict(old.named_parameters()) if name in weights and name not in {*wanted, *spare}]
    missing = []
    with torch.no_grad():
        for name, weight in wanted.items():
            source = weights.get(name)
            if source is None and (ordinary := _GLOBAL.fullmatch(name)):
                source = weights["{}.{}.{}".format(*ordinary.groups())]
            if source is not None and source.shape == weight.shape:
                weight.copy_(source)
            elif name in tables and source is not None:
                weight.copy_(_repeated(source, len(weight), offset))
            elif name in labels:
                weight.zero_()
            elif name not in drawn:
                missing.append(name)
    settle(new)
    if missing or without:
        raise UnsupportedError(
            "this network cannot have that attention:"
            + listed([f"there are no values for {name}" for name in missing])
            + listed([f"{name} would have no use" for name in without])
        )


def _remembering(model: nn.Module) -> set[str]:
    """The weights of memories, which another memory has no use for, and a new one begins without."""
    memories = [(path, module) for path, module in model.named_modules() if isinstance(module, Memory)]
    return {f"{path}.{name}" for path, module in memories for name, _ in module.named_parameters()}


def _repeated(table: Tensor, rows: int, offset: int) -> Tensor:
    """Rows of positions from the first again behind the last; the `offset` rows in front stay there."""
    positions = torch.arange(rows - offset, device=table.device) % (len(table) - offset)
    return torch.cat([table[:offset], table[offset + positions]])
