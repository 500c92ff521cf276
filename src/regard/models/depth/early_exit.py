"""Each block once, in order, until the model is sure of a token."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ConfigError
from regard.models.blocks import Block
from regard.models.depth._base import Depth, Looped, Readout, Threads, over, slots_of
from regard.precision import accumulation_dtype


@final
class EarlyExit(Depth):
    """h^n = block_n(h^{n-1}) until c^n >= lambda'(t); from then on a token keeps its hidden state.

    Confidence c^n after block n, of each token t by itself: `softmax` is the gap between the two largest
    probabilities that the model's own output layer gives for h^n; `saturation` is cos(h^n, h^{n-1}), from the second
    block on. With `decaying`, lambda'(t) = clip(0.9 lambda + 0.1 exp(-temperature t / horizon), 0, 1): an early mistake
    spoils more of a text than a late one.

    Blocks that a token skips take their keys from the state that it left with, h^n copied upwards, so that later
    tokens find every slot. Tokens of a batch leave at different depths, and causal attention stays causal; a block
    that no token of a call needs is left out but for its keys. In training every token takes every block, as does one
    at lambda = 1.

    Cost: that of the blocks up to the last token of a call to leave, the keys of the others, and for `softmax` an
    output layer for every block that is run but the last. State: that of the blocks.

    Raises:
        ConfigError: reversible blocks, whose stream is two, or a memory; `softmax` in a model without an output layer.

    Source: Schuster et al. 2022, section 3. The published code decays by
    lambda (0.9 + 0.1 exp(...)), which differs below lambda = 1; this is the formula of the paper.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"threshold": 0.05},
        {"threshold": 0.5, "confidence": "saturation"},
        {"threshold": 0.05, "decaying": True, "horizon": 8},
    )

    threshold: Annotated[float, Ge(0), Le(1)] = 1.0
    """lambda: a token leaves once its confidence is as high; 1: none does"""
    confidence: Literal["softmax", "saturation"] = "softmax"
    """the gap between the two likeliest outputs, or how little the last block turned the hidden state"""
    decaying: bool = False
    """whether the threshold falls along the text"""
    temperature: Annotated[float, Ge(0)] = 4.0
    """how fast it falls"""
    horizon: Annotated[int, Ge(1)] = 512
    """N of the fall: tokens of a long text"""

    def setup(self) -> None:
        if self.config.block == "reversible":
            raise ConfigError("depth='early_exit' runs blocks of one stream; use block='residual' or 'parallel'")
        if getattr(self.config, "remembers", False):
            raise ConfigError("depth='early_exit' has no memory of blocks that were skipped; leave the memory out")

    @property
    def places(self) -> bool:
        """Whether the threshold depends on the slot."""
        return self.decaying

    @property
    def reads_out(self) -> bool:
        """Whether confidence is the output layer's."""
        return self.confidence == "softmax"

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        marks: Sequence[Tensor | None] | None = None,
        readout: Readout | None = None,
    ) -> Looped:
        """Blocks until every token has left; `readout` for confidence='softmax'."""
        if self.reads_out and readout is None:
            raise ConfigError("confidence='softmax' needs the output layer of a model; use 'saturation' without one")
        first, stays = threads.states[0], self.training or self.threshold == 1
        limit = self.limit(slots_of(x, positions, 0 if first is None else first.length))
        active = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        steps, states = torch.zeros_like(active, dtype=torch.long), list(threads.states)
        losses: list[Mapping[str, Tensor]] = [{} for _ in blocks]
        for at, block in enumerate(blocks):
            given = {
                "key_mask": key_mask,
                "positions": positions if block.placed_at else None,
                "marks": None if marks is None else marks[at],
            }
            state = states[at]
            if over(active):
                states[at] = None if state is None else block.remember(x, **given, state=state)
                continue
            got = block(x, **given, state=state)
            states[at], losses[at] = got.state, got.losses
            before, x = x, self.kept(active, got.hidden, x)
            steps = steps + active
            if not stays and at < len(blocks) - 1:
                sure = self.sureness(x, before, readout, first=at == 0)
                active = active & ~(sure >= limit)
        return Looped(x, states, list(threads.memories), losses, steps=steps)

    def kept(self, active: Tensor, after: Tensor, before: Tensor) -> Tensor:
        """The hidden states after a block that only active tokens take."""
        return torch.where(active[..., None], after, before)

    def sureness(self, hidden: Tensor, before: Tensor, readout: Readout | None, *, first: bool) -> Tensor:
        """c^n (batch, length) of the hidden states after a block and before it; `first`: there is no block before."""
        wide = accumulation_dtype(hidden.dtype)
        if self.confidence == "softmax":
            assert readout is not None
            likely = readout(hidden).to(wide).softmax(-1).topk(2).values
            return likely[..., 0] - likely[..., 1]
        if first:  # h^0 is an embedding, and not what a block made
            return hidden.new_full(hidden.shape[:2], float("-inf"), dtype=wide)
        return F.cosine_similarity(hidden.to(wide), before.to(wide), dim=-1)

    def limit(self, slots: Tensor) -> Tensor | float:
        """lambda' of tokens in these slots."""
        if not self.decaying:
            return self.threshold
        fall = torch.exp(-self.temperature * slots.double() / self.horizon)
        return (0.9 * self.threshold + 0.1 * fall).clamp(0, 1)
