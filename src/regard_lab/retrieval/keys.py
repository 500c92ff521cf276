"""What a decoder makes of a context: the input of its last layer's MLP, by which contexts are compared."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.attention import registered_name
from regard.core.errors import UnsupportedError
from regard.models import LanguageModel
from regard.models.blocks import Block
from regard.models.depth.fixed import Fixed
from regard.models.depth.universal import Universal


@contextmanager
def kept_keys(model: LanguageModel) -> Iterator[list[Tensor]]:
    """Collects f(x_1 ... x_t) of what this thread has the model read inside, (batch, length, dim) in pieces.

    f is the input of the last layer's MLP after its norm, which Khandelwal et al. 2020 (section 5, table 5) found best.

    Raises:
        UnsupportedError: `require_keys`.
    """
    require_keys(model)
    pieces: list[Tensor] = []
    thread = threading.get_ident()

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:  # other threads may have the same model read something else
            pieces.append(given[0])

    handle = cast(nn.Module, cast(Block, model.blocks[-1]).mlp).register_forward_pre_hook(keep)
    try:
        yield pieces
    finally:
        handle.remove()


def require_keys(model: LanguageModel) -> None:
    """Refuse a model without a last MLP that reads every position once, by the text alone.

    Raises:
        UnsupportedError: blocks without an MLP, or a depth that runs them other than once; a model that itself mixes in
            neighbours.
    """
    if model.config.neighbours:
        raise UnsupportedError(
            "a datastore is made and searched by a decoder alone, and this one mixes in the neighbours of another "
            "datastore; use one with neighbours=0"
        )
    if cast(Block, model.blocks[-1]).mlp is None:
        raise UnsupportedError(
            f"a datastore keeps the input of the last layer's MLP, and blocks of block={model.config.block!r}, "
            f"mlp={model.config.mlp!r} have none; use one with an MLP"
        )
    if not isinstance(model.depth, Fixed):
        together = "" if isinstance(model.depth, Universal) else "exits and a datastore do not go together: "
        raise UnsupportedError(
            f"{together}a datastore keeps the input of the last layer's MLP, which "
            f"depth={registered_name(type(model.depth))!r} runs more than once or not at all; use depth='fixed'"
        )


def joined(pieces: list[Tensor]) -> Tensor:
    """The keys of all positions, (batch, length, dim)."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
