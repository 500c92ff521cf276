"""How a memory joins a layer."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.attention import Attention
from regard.core.errors import UnsupportedError
from regard.core.info import Heads
from regard.layer.projections import Projections
from regard.memory import Memory, MemoryState


def check_memory(memory: Memory, attention: Attention, heads: Heads) -> None:
    """Refuse a memory that the mechanism cannot read, or that compares what the mechanism does not.

    Raises:
        UnsupportedError: causal=False; a mechanism without leading keys of the past; queries that are not compared with
            keys.
    """
    info, name = attention.info, type(memory).__name__
    if not heads.causal:
        raise UnsupportedError(f"memory {name} is the past of a decoder's layer: build it with causal=True")
    if not info.supports.prefix:
        attention.refuse("a memory (leading keys of the past)", "prefix")
    if memory.compares and (not {"q", "k"} <= set(info.reads) or heads.query_width != heads.key_dim):
        raise UnsupportedError(
            f"memory {name} compares the layer's queries with keys, and {info.title} reads {', '.join(info.reads)} "
            f"with query_dim={heads.query_width}, key_dim={heads.key_dim}; use memory='recent'"
        )


def led(
    memory: Memory,
    state: MemoryState,
    x: Float[Tensor, "batch length dim"],
    key_mask: Bool[Tensor, "batch length"] | None,
) -> tuple[Float[Tensor, "batch keys dim"], Bool[Tensor, "batch keys"] | None]:
    """Hidden states behind those that are remembered, and which are real."""
    leading, remembered = memory.leading(state)
    if not leading.shape[1]:
        return x, key_mask
    parts = (remembered, leading), (key_mask, x)
    if remembered is not None or key_mask is not None:
        key_mask = torch.cat([y.new_ones(y.shape[:2], dtype=torch.bool) if m is None else m for m, y in parts], 1)
    return torch.cat([leading, x], 1), key_mask


def unread(memory: Memory | None, state: MemoryState | None) -> Int[Tensor, " batch"] | None:
    """How many of the leading slots are in front of the first real one, in each row; None: every slot is real."""
    remembered = None if memory is None or state is None else memory.leading(state)[1]
    return None if remembered is None else (~remembered).cumprod(1).sum(1)


def written(
    memory: Memory,
    state: MemoryState,
    projections: Projections,
    x: Float[Tensor, "batch length dim"],
    key_mask: Bool[Tensor, "batch length"] | None,
    projected: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[MemoryState, dict[str, Tensor]]:
    """What is remembered after a segment, and the losses under their names in a layer.

    Args:
        projected: queries of `x`, and keys and values of what ends with it, before rotation; None: they are made, if
            the memory compares anything.
    """
    if projected is None:
        compared = x if memory.compares else x[:, :0]
        projected = projections.of(compared, compared)
    q, (k, v) = projected[0], (each[:, :, max(each.shape[2] - x.shape[1], 0) :] for each in projected[1:])
    after, losses = memory.write(state, x, q=q, k=k, v=v, project=projections.detached, key_mask=key_mask)
    after.set_tag(memory.spec_tag)
    return after, {f"memory.{name}": loss for name, loss in losses.items()}
