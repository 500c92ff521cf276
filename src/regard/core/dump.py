"""Dumps of states: where slots lie in a tensor, and what a file must hold to become a state again."""

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.core.errors import ShapeError

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


_TAG = "spec_tag"
"""name of the tag in a dump"""


def tagged(tensors: Mapping[str, Tensor], spec_tag: str | None) -> dict[str, Tensor]:
    """A dump with the tag of its state as text in bytes; None: without one."""
    if spec_tag is None:
        return dict(tensors)
    return {**tensors, _TAG: torch.frombuffer(bytearray(spec_tag.encode()), dtype=torch.uint8)}


def untagged(tensors: Mapping[str, Tensor], spec_tag: str | None) -> dict[str, Tensor]:
    """A dump without its tag.

    Raises:
        ShapeError: the tag is another one than `spec_tag`.
    """
    written = tensors.get(_TAG)
    if written is not None:
        is_text = written.dtype == torch.uint8 and written.ndim == 1
        require_tag(bytes(written.tolist()).decode(errors="replace") if is_text else "nothing known", spec_tag)
    return {name: x for name, x in tensors.items() if name != _TAG}


def require_tag(found: str | None, wanted: str | None, label: str = "") -> None:
    """Refuse the state of another mechanism; None: there is none, and nothing to compare.

    Args:
        label: who refuses, in front of the message.

    Raises:
        ShapeError: there are two tags, and they differ.
    """
    if found is not None and wanted is not None and found != wanted:
        raise ShapeError(f"{label}this is the state of {found}, must be of {wanted}; begin with initial_state")
