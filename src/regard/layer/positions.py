"""How a position scheme joins a layer."""

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard.position import Position

SLOTS_ONLY = "a memory has slots only; leave positions out"


def check_position(scheme: Position, attention: Attention, heads: Heads, dim: int, *, cross: bool) -> None:
    """Refuse a scheme that was built for another layer, or that the mechanism cannot take.

    Raises:
        ConfigError: a shared module that serves other sizes.
        UnsupportedError: cross-attention, other widths, or a mechanism without biases or without keys.
    """
    info = attention.info
    # A shared module was built for another layer; what its weights and directions depend on must agree.
    facts = ("count", "key_dim", "causal") if scheme.biased else ("key_dim",) if scheme.transforms else ()
    if any(getattr(scheme.heads, fact) != getattr(heads, fact) for fact in facts) or (
        scheme.absolute and scheme.dim != dim
    ):
        raise ConfigError(
            f"the shared position serves dim={scheme.dim} and {scheme.heads}, this layer needs dim={dim} and {heads}"
        )
    if scheme.transforms and heads.query_width != heads.key_dim:
        raise UnsupportedError(
            f"position {scheme.title} changes queries and keys of one width, got query_dim="
            f"{heads.query_width}, key_dim={heads.key_dim}; use an absolute scheme or a bias by distance"
        )
    if cross and (scheme.transforms or scheme.biased):
        raise UnsupportedError(
            f"position {scheme.title} compares slots of one sequence, and cross-attention has two; "
            "use an absolute scheme (sinusoidal, learned) on both, or none"
        )
    if scheme.biased and not info.supports.bias:
        why = attention.reasons.get("bias", "")
        raise UnsupportedError(
            f"position {scheme.title} adds a bias to the logits, which {info.title} does not support"
            f"{': ' + why if why else ''}. "
            "Mechanisms that do: regard list --supports bias"
        )
    if scheme.transforms and not {"q", "k"} <= set(info.reads):
        raise UnsupportedError(
            f"position {scheme.title} changes queries and keys, and {info.title} reads only "
            f"{', '.join(info.reads)}; use an absolute scheme (sinusoidal, learned)"
        )


def token_positions(
    scheme: Position,
    past: int,
    queries: int,
    keys: int,
    positions: Tensor | None,
    device: torch.device,
    unread: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Where the queries and the keys are; one tensor for both where they are the same.

    Args:
        unread: slots in front of what each row has read, of a row whose memory was emptied: it counts from behind them.
    """
    if positions is None:
        at = scheme.slots(past, past + keys, device)
        if unread is not None:
            at = (at - unread[:, None]).clamp_min(0)[:, None]
            return at[..., keys - queries :], at
        return (at if keys == queries else at[keys - queries :]), at
    if keys != queries:
        raise UnsupportedError(SLOTS_ONLY)
    at = positions if positions.ndim == 1 else positions[:, None]
    return at, at


def turned(
    scheme: Position, q: Tensor, k: Tensor, past: int, positions: Tensor | None, unread: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys as the scheme transforms them, and where the keys are; arguments as `token_positions`."""
    at, of_keys = token_positions(scheme, past, q.shape[2], k.shape[2], positions, k.device, unread)
    return *scheme.transform(q, k, at, of_keys), of_keys


def placed(scheme: Position, x: Tensor, positions: Tensor | None, past: int) -> Tensor:
    """Hidden states with their absolute positions."""
    slots = torch.arange(past, past + x.shape[1], device=x.device) if positions is None else positions
    return scheme.embed(x, slots)
