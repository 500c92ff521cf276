"""The memory of the Compressive Transformer: what leaves the recent positions is kept in fewer slots."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from regard.core.options import weight
from regard.memory._base import Memory, MemoryState, Project, join
from regard.memory._content import attention_of, content_weights

_LEARNT = {"convolution": 1, "dilated_convolution": 2}
"""function with weights -> the distance of two of its taps"""


@final
class Compressive(Memory):
    """Keeps the last `length` inputs of the layer, and of those before them one slot for every `rate`, up to
    `compressed`; h~ = [SG(compressed); SG(memory); h].

    Positions leave the memory in whole blocks of `rate`, oldest first: what is beyond `length` by less than a block
    stays, is read, and leaves with what comes next. So the split of a text into segments that are no multiple of `rate`
    moves no block border. A compressed slot is real where any of its positions is, and masked ones have no part in it.

    Only the loss trains the function: h, what is compressed, and the layer's projections are cut from the graph, and so
    is the memory from the loss of the task. With f the function, a the layer's attention by content alone (no
    positions, softmax at 1/sqrt(key_dim)) and norms of each row of the batch, whose mean is taken:

        attention: |a(SG(h), SG(old)) - a(SG(h), f(SG(old)))|_2       auto_encoding: |SG(old) - g(f(SG(old)))|_2

    g makes `rate` hidden states of each slot, linearly, and begins by repeating it.

    Range: length + rate compressed positions a layer. Cost: O(segment + length + compressed) a query; training, for the
    loss, once more the pairs of a segment. Lost: what the function leaves out.

    State: up to length + rate - 1 hidden states with their mask and up to `compressed` slots with theirs; `tail`, the
    positions that dilated taps reach back to; `usage` of each position, with `most_used`.

    Source: Rae et al. 2020, sections 3.1 and 3.2, algorithm 1 and 2.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"length": 4, "compressed": 3, "rate": 3, "function": "mean"},
        {"length": 5, "compressed": 2, "rate": 2, "function": "dilated_convolution", "loss": "auto_encoding"},
        {"length": 3, "compressed": 4, "rate": 2, "function": "most_used"},
    )
    masks: ClassVar[Mapping[str, str]] = {"hidden": "key_mask", "compressed": "compressed_mask"}

    length: Annotated[int, Ge(1)] = 512
    """positions to keep as they are"""
    compressed: Annotated[int, Ge(0)] = 512
    """slots to keep of those before; 0: as `recent`"""
    rate: Annotated[int, Ge(1)] = 3
    """positions in a slot"""
    function: Literal["max", "mean", "convolution", "dilated_convolution", "most_used"] = "convolution"
    """max, mean: over the block, by channel. convolution: of as many taps as positions, one step a block.
    dilated_convolution: its taps are two positions apart and reach into the block before. most_used: of all real ones
    that leave together, the 1/rate that later segments attended to most, in their order"""
    loss: Literal["attention", "auto_encoding", "none"] = "attention"
    """what trains the function; of one without weights it is only told"""
    taps: nn.Parameter = weight()
    """(rate, dim, dim) of a convolution, which begins as the mean"""
    decoder: nn.Parameter = weight()
    """(rate, dim, dim) of the auto-encoding loss"""

    def setup(self) -> None:
        every = torch.eye(self.dim).repeat(self.rate, 1, 1)
        if self.function in _LEARNT:
            self.taps = nn.Parameter(every / self.rate)
        if self.loss == "auto_encoding":
            self.decoder = nn.Parameter(every)

    @property
    def losses(self) -> Mapping[str, float]:
        return {} if self.loss == "none" or not self.compressed else {self.loss: 1.0}

    @property
    def compares(self) -> bool:
        return "attention" in self.losses or self.function == "most_used"

    @property
    def reach(self) -> int:
        """Positions before a block that its slot is made of too."""
        return (self.rate - 1) * (_LEARNT.get(self.function, 1) - 1)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> MemoryState:
        """No slots yet."""
        sizes = {"hidden": (0, self.dim), "compressed": (0, self.dim)}
        if self.reach:
            sizes["tail"] = (self.reach, self.dim)
        if self.function == "most_used":
            sizes["usage"] = (0, 1)
        content = {name: torch.zeros(batch, *size, device=device, dtype=dtype) for name, size in sizes.items()}
        return MemoryState(content, spec_tag=self.spec_tag)

    def leading(self, state: MemoryState) -> tuple[Tensor, Tensor | None]:
        """The compressed slots, then the memory, detached."""
        old, new = state["compressed"].detach(), state["hidden"].detach()
        return join(old, state.content.get("compressed_mask"), new, state.content.get("key_mask"))

    def write(
        self,
        state: MemoryState,
        x: Tensor,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        project: Project,
        key_mask: Tensor | None = None,
    ) -> tuple[MemoryState, dict[str, Tensor]]:
        """The memory with the segment; of what leaves it, the compressed slots; and the loss of these."""
        del k, v
        hidden, mask = join(state["hidden"], state.content.get("key_mask"), x.detach(), key_mask)
        leaving = max(hidden.shape[1] - self.length, 0)
        leaving -= leaving % self.rate if self.compressed else 0
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
        old, old_real = hidden[:, :leaving], real[:, :leaving]
        content, usage = {"hidden": hidden[:, leaving:]}, None
        if "usage" in state.content:
            usage = self._used(state, q, project, key_mask)
            usage = torch.cat([usage, usage.new_zeros(*x.shape[:2], 1)], 1)
            content["usage"], usage = usage[:, leaving:], usage[:, :leaving]
        tail = state.content.get("tail")
        if tail is not None:
            content["tail"] = torch.cat([tail, old], 1)[:, leaving:]
        new, new_real = self.squeezed(old, old_real, tail=tail, usage=usage)
        masked = None if mask is None and "compressed_mask" not in state.content else new_real
        slots, slots_mask = join(state["compressed"], state.content.get("compressed_mask"), new.detach(), masked)
        first = max(slots.shape[1] - self.compressed, 0)
        content["compressed"] = slots[:, first:]
        if mask is not None:
            content["key_mask"] = mask[:, leaving:]
        if slots_mask is not None:
            content["compressed_mask"] = slots_mask[:, first:]
        # Copies: a slice would keep the segment alive behind what is kept of it.
        after = MemoryState({name: x.clone() for name, x in content.items()}, state.length + x.shape[1])
        if not (self.training and self.losses):
            return after, {}
        return after, {self.loss: self._loss(q.detach(), key_mask, old, old_real, new, new_real, project)}

    def squeezed(
        self, old: Tensor, real: Tensor, *, tail: Tensor | None = None, usage: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """f: one slot for every `rate` positions, and which slots are real.

        Args:
            old: (batch, blocks rate, dim), 0 where it is not real.
            real: (batch, blocks rate).
            tail: the `reach` positions before them.
            usage: (batch, blocks rate, 1), what `most_used` compares.
        """
        if not self.compressed or not old.shape[1]:
            return old[:, :0], real[:, :0]
        batch, blocks = len(old), old.shape[1] // self.rate
        if self.function == "most_used":
            assert usage is not None
            order = usage[..., 0].masked_fill(~real, float("-inf")).argsort(dim=1, descending=True, stable=True)
            share = -(-real.sum(1, keepdim=True) // self.rate)  # what is masked takes no place of what is real
            place = torch.arange(blocks, device=old.device)
            kept = order[:, :blocks].masked_fill(place >= share, -1).sort(1).values
            slots = old.gather(1, kept.clamp(min=0)[..., None].expand(-1, -1, self.dim))
            return slots.masked_fill(kept[..., None] < 0, 0), kept >= 0
        by_block = real.view(batch, blocks, self.rate)
        any_real = by_block.any(2)
        if self.function in _LEARNT:
            before = old if tail is None else torch.cat([tail.to(old.dtype), old], 1)
            kernel = self.taps.permute(2, 1, 0).to(old.dtype)
            new = F.conv1d(before.mT, kernel, stride=self.rate, dilation=_LEARNT[self.function]).mT
            return new.masked_fill(~any_real[..., None], 0), any_real
        parts = old.view(batch, blocks, self.rate, self.dim)
        if self.function == "mean":
            return parts.sum(2) / by_block.sum(2).clamp(min=1)[..., None], any_real
        largest = parts.masked_fill(~by_block[..., None], float("-inf")).amax(2)
        return largest.masked_fill(~any_real[..., None], 0), any_real

    def _used(self, state: MemoryState, q: Tensor, project: Project, key_mask: Tensor | None) -> Tensor:
        """The attention that each position of the memory has received, with that of this segment's queries."""
        with torch.no_grad():
            leading, mask = self.leading(state)
            weights = content_weights(q, project(leading)[0], mask)
            if key_mask is not None:
                weights = weights.masked_fill(~key_mask[:, None, :, None], 0)
            received = weights.sum((1, 2))[:, state["compressed"].shape[1] :, None]
            return state["usage"] + received.to(state["usage"].dtype)

    def _loss(
        self,
        q: Tensor,
        key_mask: Tensor | None,
        old: Tensor,
        old_real: Tensor,
        new: Tensor,
        new_real: Tensor,
        project: Project,
    ) -> Tensor:
        if self.loss == "auto_encoding":
            again = torch.einsum("bsd,rde->bsre", new, self.decoder.to(new.dtype)).flatten(1, 2)
            difference = (old - again) * old_real[..., None]
        else:
            if key_mask is not None:  # what is masked may be NaN
                q = q.masked_fill(~key_mask[:, None, :, None], 0)
            exact, squeezed = (attention_of(q, *project(x), real) for x, real in ((old, old_real), (new, new_real)))
            difference = exact - squeezed
            if key_mask is not None:
                difference = difference * key_mask[:, None, :, None]
        norms = torch.linalg.vector_norm(difference.flatten(1), dim=1)
        return norms.mean() if len(norms) else norms.sum()
