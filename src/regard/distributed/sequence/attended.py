"""Attention of a part of every sequence: which exchange a mechanism takes, by its declared facts alone."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import Attended, Attention
from regard.core.bias import ScoreBias
from regard.core.errors import UnsupportedError
from regard.core.options import registered_name
from regard.distributed.sequence.parts import Asked, Parts
from regard.distributed.sequence.passing import passed, summed
from regard.distributed.sequence.ring import ring
from regard.distributed.sequence.tiles import MadeBias, behind_window, within_window
from regard.head_mix import HeadMix
from regard.layer.positions import token_positions
from regard.patterns import FAR, Pattern
from regard.position import Position

Way = Literal["ring", "window", "around", "sums", "passed", "mix"]
"""keys travel, merged by their log-sum-exp; keys of a pattern, causal or not; states: added up, or one after another;
each part of a mix its own way"""


def way_of(attention: Attention) -> Way:
    """How the parts of a sequence exchange what this mechanism needs.

    Raises:
        UnsupportedError: nothing that is exact and smaller than the whole sequence can be exchanged; says why.
    """
    if isinstance(attention, HeadMix):
        for each in attention.mechanisms:
            way_of(each)
        return "mix"
    info, causal = attention.info, attention.heads.causal
    by_state = causal or info.supports.cross
    if attention.impl == "reference":
        raise UnsupportedError(
            f"{registered_name(type(attention))} with impl='reference' keeps every key of a sequence, which processes "
            "that share it do not; leave impl out"
        )
    pattern = getattr(attention, "pattern", None)
    if isinstance(pattern, Pattern) and _keeps_keys_alone(attention):
        near = pattern.distances[1] < FAR
        if causal and (near or pattern.anchored):
            return "window"
        if not causal and near and pattern.distances[0] > -FAR and not (pattern.anchored or info.anchored):
            return "around"
    if info.mergeable and (causal or (info.supports.cross and pattern is None)):
        return "ring"
    if info.supports.state and by_state and info.state == "constant" and attention.adds_states:
        return "sums"
    if info.supports.state and causal and info.state in ("constant", "window"):
        return "passed"
    raise UnsupportedError(f"{registered_name(type(attention))} {_why(attention)}; choose another mechanism for it")


def _keeps_keys_alone(attention: Attention) -> bool:
    """Whether its state holds keys and values, and nothing else."""
    return attention.info.supports.state and attention.layout().keys() <= {"k", "v", "positions"}


def _why(attention: Attention) -> str:
    """Why no exchange serves a mechanism."""
    if attention.heads.causal:
        return (
            "cannot share a sequence among processes: its state grows with the length, and it is no single softmax "
            "whose parts merge (info.state, info.mergeable)"
        )
    return (
        "cannot share a sequence that is read in both directions among processes: it has no softmax whose parts merge, "
        "no state that adds up over other parts, and no pattern by distance alone (info.mergeable, info.supports.cross)"
    )


class SharedAttention:
    """Attention of this process's part; see `regard.distributed.sequence_parallel`.

    A layer whose `exchange` it is projects its own tokens, and leaves positions and averages to it.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def begun(self, **given: object) -> int:
        """The slots of the sequence before this part, for a call that the parts of a sequence can share.

        Raises:
            UnsupportedError: an argument that belongs to one process.
        """
        named = [name for name, x in given.items() if x is not None]
        if named:
            raise UnsupportedError(
                f"processes that share a sequence take no {' and no '.join(named)}; leave sequence_parallel for this"
            )
        return self.parts.start

    def attended(
        self,
        attention: Attention,
        scheme: Position | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        positions: Tensor | None,
        inputs: Mapping[str, Tensor],
    ) -> Attended:
        """The averages of this part's queries over the keys of all parts.

        Args:
            attention: the mechanism. scheme: the layer's positions, not yet applied to queries and keys.
            q, k, v, key_mask, inputs: of this part, as `Attention.forward` takes them.
            positions: of its tokens, as `AttentionLayer.forward`.
        """
        parts, length = self.parts, q.shape[2]
        if length != parts.length:
            raise UnsupportedError(
                f"this process has positions {parts.start} to {parts.stop - 1} of a sequence, and got {length}; call "
                "the model itself, and backward before the next part"
            )
        attention.check_length(parts.total)

        def bias(distances: tuple[int, int], around: tuple[int, int]) -> ScoreBias | None:
            if scheme is None or not scheme.biased:
                return None
            return scheme.bias(F.pad(asking, (0, 0, *around)), *distances)

        asking = q
        if scheme is not None and scheme.transforms:
            at, of_keys = token_positions(scheme, parts.start, length, length, positions, q.device)
            q, k = scheme.transform(q, k, at, of_keys)
        return attended(parts, attention, q, k, v, key_mask=key_mask, inputs=inputs, bias=bias)


def attended(
    parts: Parts,
    attention: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    bias: MadeBias = lambda distances, around: None,
) -> Attended:
    """The averages of this part's queries, as in one call on the whole sequence; every process calls it alike.

    Args:
        parts: which positions are here.
        attention: the mechanism, with the same weights in all processes.
        q, k, v, key_mask, inputs: of this part, as `Attention.forward` takes them.
        bias: gives that of some distances.

    Raises:
        UnsupportedError: as `way_of`.
    """
    asked = Asked(q, k, v, key_mask, inputs or {})
    match way_of(attention):
        case "mix":
            assert isinstance(attention, HeadMix)
            return _mixed(parts, attention, asked, bias)
        case "ring":
            return ring(parts, attention, asked, bias(attention.bias_distances(parts.total, parts.total), (0, 0)))
        case "window":
            return behind_window(parts, attention, asked, bias)
        case "around":
            return within_window(parts, attention, asked, bias)
        case "sums":
            return summed(parts, attention, asked)
        case "passed":
            return passed(parts, attention, asked, bias)


def _mixed(parts: Parts, mix: HeadMix, asked: Asked, bias: MadeBias) -> Attended:
    """Each part of a mix with its own heads."""
    q, k, v, key_mask, inputs = asked
    values: list[Tensor] = []
    losses: dict[str, Tensor] = {}
    for (name, each, query_heads, key_heads), names in zip(mix.shares(), mix.loss_names, strict=True):
        own = {key.removeprefix(f"{name}."): x for key, x in inputs.items() if key.startswith(f"{name}.")}
        got = attended(
            parts,
            each,
            q[:, query_heads],
            k[:, key_heads],
            v[:, key_heads],
            key_mask=key_mask,
            inputs=own,
            bias=partial(_of_heads, bias, query_heads),
        )
        values.append(got.values)
        for loss, x in got.losses.items():
            losses[names[loss]] = losses[names[loss]] + x if names[loss] in losses else x
    return Attended(torch.cat(values, 1), losses=losses)


def _of_heads(bias: MadeBias, heads: slice, distances: tuple[int, int], around: tuple[int, int]) -> ScoreBias | None:
    made = bias(distances, around)
    return None if made is None else made.heads(heads)
