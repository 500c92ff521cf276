"""What `save_pretrained` wrote of a Hugging Face model whose attention was replaced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.core.errors import CheckpointError, ConfigError
from regard.integrations import folder as _folder
from regard.integrations._replacement import Request
from regard.integrations.architectures import Architecture
from regard.integrations.weights import Stored


def settings(folder: Path) -> dict[str, Request]:
    """What each place of the model was built from, by its name.

    Raises:
        ConfigError: nothing was replaced.
        CheckpointError: a setting is damaged.
    """
    saved = _folder.read_json(folder, _folder.CONFIG).get(_folder.REPLACED)
    if not isinstance(saved, dict) or not saved:
        raise ConfigError(f"{folder} was not written after replace_attention; load it with from_pretrained")
    try:
        return {
            name: Request(str(one["spec"]), one["max_length"], float(one["dropout"]), int(one["seed"]))
            for name, one in saved.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / _folder.CONFIG}: {_folder.REPLACED} is damaged: {error!r}") from error


def plain(kind: Any, folder: Path) -> Any:
    """The model as transformers loads it, with every weight that it has a place for.

    Raises:
        CheckpointError: weights that are missing or do not fit.
    """
    try:
        model, found = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"transformers cannot load {folder}: {error}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise CheckpointError(f"{folder} has no {missing[0]}" + (f" and {len(missing) - 1} more" * (len(missing) > 1)))
    return model


@torch.no_grad()
def fill(model: nn.Module, stored: Mapping[str, Stored], folder: Path, mark: str, architecture: Architecture) -> None:
    """The weights of the mechanisms, which transformers has no use for.

    Args:
        model: with its places.
        stored: the tensors of the folder.
        folder: for messages.
        mark: what stands in the name of every weight of a place.
        architecture: the model's; transformers may write other names than those of its modules.

    Raises:
        CheckpointError: one is missing, of another shape or type, there twice, or belongs to no place.
    """
    placed = {name: Stored(tuple(x.shape), lambda x=x: x) for name, x in model.state_dict().items() if mark in name}
    own = _folder.under_one_name(placed, architecture)
    stored = _folder.under_one_name({name: one for name, one in stored.items() if mark in name}, architecture)
    unread = sorted(stored.keys() - own.keys())
    if unread:
        raise CheckpointError(f"{folder} has {unread[0]}, of a mechanism that {_folder.REPLACED} does not name")
    for name, weight in own.items():
        if name not in stored or stored[name].shape != weight.shape:
            raise CheckpointError(f"{folder} has no {name} of shape {weight.shape}")
        if stored[name].kind.startswith(("F", "BF")) != weight.read().is_floating_point():
            raise CheckpointError(f"{folder} has {name} as {stored[name].kind}, and the mechanism as another type")
        weight.read().copy_(stored[name].read())
