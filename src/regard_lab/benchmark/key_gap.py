"""How far keys of copied states are from those that the full model would have."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.core.errors import UnsupportedError
from regard.models.decoder import LanguageModel


@torch.no_grad()
def key_gap(
    model: LanguageModel, tokens: Int[Tensor, "batch length"], depths: Int[Tensor, "batch length"]
) -> list[tuple[float, float] | None]:
    """Of every block, the mean of |k - k_full| / |k_full| over the tokens that skip it, and the same of its values.

    The block behind a token's last one has the keys of the full model, unless tokens before have changed what it read.

    Args:
        model: in evaluation mode, with exits that may be told.
        tokens: of a text.
        depths: after how many blocks each token leaves.

    Returns:
        For every block, of keys and of values; None where no token skips it.

    Raises:
        UnsupportedError: a layer whose state is no list of keys, or a model without exits.

    Source: the gap that Elbayad et al. 2020, section 3.1, train with mixed exits to close.
    """
    deepest = torch.full_like(depths, model.config.layers)
    states = []
    for told in (depths, deepest):
        state = model(tokens, state=model.initial_state(len(tokens)), depths=told).state
        assert state is not None
        states.append(state.tensors())
    gaps: list[tuple[float, float] | None] = []
    for at in range(model.config.layers):
        skipped, both = depths <= at, []
        for name in ("k", "v"):
            found = [next((x for key, x in kept.items() if _of(key, at, name)), None) for kept in states]
            if found[0] is None or found[1] is None or found[0].shape[2] != tokens.shape[1]:
                raise UnsupportedError(f"block {at + 1} keeps no keys of every token; compare layers of softmax")
            own, full = (x.transpose(1, 2).flatten(2) for x in found if x is not None)
            both.append(((own - full).norm(dim=-1) / full.norm(dim=-1))[skipped].mean().item())
        gaps.append((both[0], both[1]) if skipped.any() else None)
    return gaps


def _of(key: str, at: int, name: str) -> bool:
    """Whether a tensor of the state is the keys or values of this layer."""
    return key.startswith(f"layers.{at}.") and key.endswith(f".{name}")
