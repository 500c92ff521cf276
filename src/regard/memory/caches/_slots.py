"""Lists of slots: which mechanisms keep one, the rows of a call, and picks of every head for itself."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.call import Attended
from regard.core.composite import States
from regard.core.errors import UnsupportedError
from regard.core.state import Slots, Tape

_LENGTHS = (1, 100, 10_000)
"""lengths at which a mechanism must say that it keeps every slot"""


def only_slots(attention: Attention, name: str) -> None:
    """Refuse a mechanism whose state is no list of slots, each of which could be missing.

    Where only the content of keys counts, all that is kept for a slot may be kept or dropped with it. Elsewhere slots
    are put back where they were, and what is kept for them must be keys and values alone.

    Raises:
        UnsupportedError: sums, pieces over heads, slots that it drops itself, inputs that act between slots.
    """
    info, heads = attention.info, attention.heads

    def refuse(why: str) -> None:
        raise UnsupportedError(
            f"cache {name} drops slots from a state, and {info.title} {why}. Mechanisms that keep every key and value "
            "serve: softmax, additive, shaw"
        )

    if not info.supports.state or not heads.causal:
        refuse("has no state to decode with")
    state = attention.initial_state(1)
    if isinstance(state, States):
        refuse("is a mix over heads, with a state of each part: give all heads one mechanism")
    if not isinstance(state, Slots) or state.steady:
        refuse("keeps sums, in which no slot can be told from another")
    layout = attention.layout()
    if attention.impl != "reference" and any(attention.kept_slots(n) != n for n in _LENGTHS):
        refuse("drops slots itself, those that its pattern no longer needs")
    if info.inputs:
        refuse(f"has inputs ({', '.join(info.inputs)}) that act between slots, which would be missing")
    strange = layout.keys() - {"k", "v"}
    if not info.sees_content_only and strange:
        refuse(f"also keeps {', '.join(sorted(strange))} for them all")
    if any(not entry.batched or entry.shape[:1] != (heads.kv_heads,) for entry in layout.values()):
        refuse("keeps things that belong to no head of keys")


def pick(state: Slots, index: Int[Tensor, "batch heads kept"], real: Bool[Tensor, "batch kept"] | None = None) -> Slots:
    """The state with the picked kept slots of every head, and room for one more, which then costs no copy.

    Args:
        index: ascending places among the kept slots.
        real: what becomes of the mask, where the state has one.
    """
    roomy = index.new_zeros(*index.shape[:2], index.shape[2] + 1)
    roomy[..., :-1] = index
    first = torch.arange(0, state.kept * index.shape[:2].numel(), max(state.kept, 1), device=index.device)
    rows = (roomy + first.view(*index.shape[:2], 1)).flatten()  # whole rows: many times as fast as a gather
    data: dict[str, Tensor] = {}
    for name, x in state.view().items():
        if name == "key_mask":
            assert real is not None
            data[name] = real.new_zeros(len(real), roomy.shape[2])
            data[name][:, :-1] = real
        else:
            data[name] = x.flatten(0, 2).index_select(0, rows).unflatten(0, roomy.shape)
    count = index.shape[2]
    return Slots(Tape(data, count, count + 1), 0, count, state.length, {}, state.spec_tag)


class Rows(NamedTuple):
    """What a call gives a mechanism besides the state: as `Attention.forward` takes it."""

    q: Float[Tensor, "batch heads queries query_dim"]
    k: Float[Tensor, "batch kv_heads keys key_dim"]
    v: Float[Tensor, "batch kv_heads keys value"]
    key_mask: Bool[Tensor, "batch keys"] | None = None
    bias: ScoreBias | None = None

    def through(self, attention: Attention, state: Slots) -> Attended:
        """The mechanism's answer behind these slots."""
        return attention(self.q, self.k, self.v, key_mask=self.key_mask, bias=self.bias, state=state)

    def cut(self, first: int, stop: int, past: int) -> "Rows":
        """The keys [first, stop) of the call, and the queries at their slots; `past` slots were before the call."""
        q, k, v, key_mask, bias = self
        keys = k.shape[2]
        if stop - first == keys:
            return self
        lead = keys - q.shape[2]
        queries, new = slice(max(first - lead, 0), max(stop - lead, 0)), slice(first, stop)
        if bias is not None:
            query = None if bias.query is None else bias.query[:, :, queries]
            table = None if bias.table is None else bias.table[:, :, queries, : past + stop]
            bias = replace(bias, query=query, table=table)
        return Rows(q[:, :, queries], k[:, :, new], v[:, :, new], None if key_mask is None else key_mask[:, new], bias)
