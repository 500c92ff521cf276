"""Dumps of states: where slots lie in a tensor, and what a file must hold to become a state again."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.owner import Owner

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


_OF = "of"
"""the part of a dump that says whose state it is"""
_WHOLE = re.compile(r"(?<=\d)\.0\b")
"""what 3.0 has and 3 has not, which are one option"""


def signed(tensors: Mapping[str, Tensor], owner: Owner | None) -> dict[str, Tensor]:
    """A dump that says whose state it is, as text in bytes, since the same numbers under other options would mean
    others; of an owner that is not known, as it is."""
    if owner is None:
        return dict(tensors)
    return {**tensors, _OF: torch.frombuffer(bytearray(str(owner).encode()), dtype=torch.uint8)}


def unsigned(tensors: Mapping[str, Tensor], owner: Owner | None) -> dict[str, Tensor]:
    """What `signed` was given. A dump that says nothing, as of a state that nobody marked, is taken as it is.

    Raises:
        ShapeError: the state of another owner than this one, or of this one under other options.
    """
    said = tensors.get(_OF)
    if said is not None and owner is not None:
        text = bytes(said.tolist()).decode(errors="replace") if said.dtype == torch.uint8 and said.ndim == 1 else ""
        if _WHOLE.sub("", text) != _WHOLE.sub("", str(owner)):
            raise ShapeError(f"this is the state of {text or 'nothing known'}, must be of {owner}; begin anew")
    return {name: x for name, x in tensors.items() if name != _OF}
