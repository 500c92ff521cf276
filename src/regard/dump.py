"""Dumps of states: where slots lie in a tensor, and what a file must hold to become a state again."""

from collections.abc import Mapping

from torch import Tensor

from regard.errors import ShapeError

SLOT_AXIS = {1: 0, 2: 1, 3: 2, 4: 2}
"""Which axis counts slots, by number of axes: (slots,), (batch, slots), (batch, heads, slots), (batch, heads, slots,
dim)."""


def loaded(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], slots: frozenset[str] = frozenset()
) -> tuple[int, dict[str, Tensor]]:
    """The length and the content of a dump, which has the names and, batch and slots apart, the shapes of `like`.

    Args:
        slots: names with an axis of slots; `key_mask` among them may be missing or new.

    Raises:
        ShapeError: it has not.
    """
    content = {name: x for name, x in tensors.items() if name != "length"}
    optional = {"key_mask"} & slots
    if "length" not in tensors or content.keys() - optional != like.keys() - optional:
        raise ShapeError(f"this state has {sorted({'length', *like})}, got {sorted(tensors)}")
    sizes: dict[str, set[int]] = {"batch": set(), "slots": set()}
    for name, x in content.items():
        wanted = list(like[name].shape) if name in like else [0, 0]
        if x.ndim != len(wanted) or (name in like and x.is_floating_point() != like[name].is_floating_point()):
            raise ShapeError(f"{name} of this state has {len(wanted)} axes, got {x.dtype} {tuple(x.shape)}")
        free = {SLOT_AXIS[x.ndim]} if name in slots else set[int]()
        if name != "positions":
            free |= {0}
            sizes["batch"].add(x.shape[0])
        if name in slots:
            sizes["slots"].add(x.shape[SLOT_AXIS[x.ndim]])
        if any(x.shape[at] != wanted[at] for at in range(x.ndim) if at not in free):
            raise ShapeError(f"{name} of this state must be like {tuple(wanted)}, got {tuple(x.shape)}")
    length = tensors["length"]
    if any(len(found) > 1 for found in sizes.values()):
        raise ShapeError(f"the tensors of a state share batch and slots, got {sizes}")
    if length.ndim or length.is_floating_point() or int(length) < 0:
        raise ShapeError(f"the length of a state is one integer, at least 0; got {length.tolist()}")
    return int(length), content
