"""The same blocks again and again, until each token has had enough."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast, final

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.composite import States
from regard.core.errors import ConfigError
from regard.core.options import weight
from regard.core.precision import accumulation_dtype
from regard.core.state import State
from regard.models.blocks import Block
from regard.models.depth._base import NOTHING, Depth, Looped, Threads, Tokens, over
from regard.models.depth._transition import Transition
from regard.position._base import sinusoidal_code


@final
class Universal(Depth):
    """h^t = blocks(h^{t-1} + P^t), t = 1, 2, ...; P^t_i = code(i) + code(t), sinusoids of slot and step, from 1 on.

    Adaptive computation time, for every token by itself: p_t = sigmoid(w . h^t + b); it halts at the first step N whose
    p_1 + ... + p_N reaches 1 - epsilon, or at the last. Its output is p_1 h^1 + ... + p_{N-1} h^{N-1} + R h^N with
    R = 1 - p_1 - ... - p_{N-1}: weights that sum to 1. A token that has halted keeps h^N, which others attend to. The
    loss `ponder` is the mean of N + R over the tokens, with a gradient through R alone. N follows from the token and
    what it attends to, so that causal attention stays causal; later steps are left out once every token has halted.

    The published stack is one block with norm='post', where P^t is part of the residual stream. Its transition is the
    MLP of the block, or with transition='convolution' two separable convolutions behind every block (mlp='none'), which
    read what a token and its neighbours are in the same step: those before it in a decoder, on both sides elsewhere.
    They read a token that has halted too.

    Cost: that of the blocks, times the steps until the last token of a batch halts; with a state, convolutions take the
    later steps as well. State: that of the blocks for every step, and the last inputs of convolutions.

    Raises:
        ConfigError: reversible blocks, or a memory: neither has its streams or its content for every step. Convolutions
            beside an MLP, or their width without them.

    Source: Dehghani et al. 2019, section 2; halting: Graves 2016, section 2. The published code averages by
    new = w h + (1 - w) old, which is another sum, and lets halted tokens go on as keys; neither is done here.
    """

    steps: Annotated[int, Ge(1), Le(1024)] = 6
    """most steps"""
    halting: bool = True
    """whether tokens halt by themselves; False: all take every step, and the output is the last one"""
    epsilon: Annotated[float, Gt(0), Lt(1)] = 0.01
    """what may be missing of 1 where a token halts"""
    ponder: Annotated[float, Ge(0)] = 0.01
    """weight of the loss"""
    coordinates: Literal["both", "steps", "none"] = "both"
    """what P^t tells: slot and step, the step alone (for relative schemes), or nothing"""
    transition: Literal["mlp", "convolution"] = "mlp"
    """what follows attention: the MLP of the blocks, or separable convolutions in its place"""
    width: Annotated[int, Ge(1)] | None = None
    """channels between the convolutions; None: 4 dim"""
    halt: nn.Linear = weight()
    transitions: nn.ModuleList = weight()
    """convolutions, of every block"""

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"transition": "convolution", "width": 24})

    def setup(self) -> None:
        if self.config.block == "reversible":
            raise ConfigError("depth='universal' runs blocks of one stream; use block='residual' or 'parallel'")
        if getattr(self.config, "remembers", False):
            raise ConfigError("depth='universal' has no memory for every step; leave the memory out")
        convolves = self.transition == "convolution"
        if convolves and self.config.mlp != "none":
            raise ConfigError("universal(transition='convolution') stands in the place of the MLP; set mlp='none'")
        if self.width is not None and not convolves:
            raise ConfigError(f"universal(width={self.width}) is that of transition='convolution'; leave it out")
        seeds = [generator(self.config.seed, "transition", at).initial_seed() for at in range(self.config.layers)]
        width = self.width or 4 * self.config.dim
        self.transitions = nn.ModuleList(Transition(self.config, width, seed=seed) for seed in seeds if convolves)
        if self.halting:
            self.halt = nn.Linear(self.config.dim, 1)
            nn.init.zeros_(self.halt.weight)
            nn.init.ones_(self.halt.bias)

    @property
    def places(self) -> bool:
        """Whether P^t tells slots."""
        return self.coordinates == "both"

    @property
    def each(self) -> int:
        """A step is all blocks."""
        return self.config.layers

    @property
    def most(self) -> int | None:
        """All blocks in every step, where tokens halt."""
        return self.steps * self.config.layers if self.halting else None

    @property
    def losses(self) -> dict[str, float]:
        """The weight of `ponder`."""
        return {"ponder": self.ponder} if self.halting else {}

    def initial_state(
        self, blocks: Sequence[Block], batch: int, *, device: torch.device, dtype: torch.dtype
    ) -> list[State]:
        """Of each block, a state for every step; of the convolutions behind it too."""
        place, steps = {"device": device, "dtype": dtype}, [str(step) for step in range(self.steps)]
        states: list[State] = []
        for at, block in enumerate(blocks):
            parts: dict[str, State] = {step: block.attention.initial_state(batch, **place) for step in steps}
            if self.transitions:
                behind = cast(Transition, self.transitions[at])
                parts["transitions"] = States({step: behind.initial_state(batch, **place) for step in steps})
            states.append(States(parts))
        return states

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        tokens: Tokens = NOTHING,
    ) -> Looped:
        """Steps until every token has halted."""
        run = _Run(blocks, self.transitions, threads, tokens)
        slots = tokens.slots(x, run.past)
        if not self.halting:
            for step in range(self.steps):
                x = run.step(step, x + self._code(x, slots, step))
            return Looped(x, run.states(), list(threads.memories), run.losses)
        halting = Halting.before(x, tokens.key_mask)
        for step in range(self.steps):
            entering = halting.hidden + self._code(x, slots, step)
            if over(halting.active):
                run.remember(step, entering, halting.active)
            else:
                hidden = run.step(step, entering, halting.active)
                halting = self.after(halting, hidden, last=step == self.steps - 1)
        states, memories = run.states(), list(threads.memories)
        own: dict[str, Tensor] = {}
        if self.training:
            real = torch.ones_like(halting.active) if tokens.key_mask is None else tokens.key_mask
            own["ponder"] = (halting.count + halting.rest).sum() / real.sum().clamp(min=1)  # of padding both are 0
        return Looped(halting.mean.to(x.dtype), states, memories, run.losses, own=own, steps=halting.count)

    def odds(self, hidden: Tensor) -> Tensor:
        """p of every token, in float32 at least: 8 bits would lose small ones in their sum."""
        logits = self.halt(hidden)[..., 0]
        return logits.to(accumulation_dtype(logits.dtype)).sigmoid()

    def after(self, halting: "Halting", hidden: Tensor, *, last: bool) -> "Halting":
        """What became of the tokens after a step that gave `hidden`; at the last one all halt."""
        active = halting.active
        hidden = torch.where(active[..., None], hidden, halting.hidden)
        p, rest = self.odds(hidden), 1 - halting.total
        stops = active & ((halting.total + p >= 1 - self.epsilon) | last)
        share = torch.where(stops, rest, p)[..., None]
        return Halting(
            hidden=hidden,
            active=active & ~stops,
            total=torch.where(active & ~stops, halting.total + p, halting.total),
            mean=halting.mean + torch.where(active[..., None], share * hidden, 0),
            count=halting.count + active,
            rest=torch.where(stops, rest, halting.rest),
        )

    def _code(self, x: Tensor, slots: Tensor, step: int) -> Tensor:
        """P^t of every token."""
        if self.coordinates == "none":
            return x.new_zeros(())
        code = sinusoidal_code(slots.new_tensor([step + 1]), x.shape[-1])
        return (code + sinusoidal_code(slots + 1, x.shape[-1]) if self.places else code).to(x.dtype)


class Halting(NamedTuple):
    """What became of the tokens: hidden and mean (batch, length, dim), the others (batch, length).

    hidden: h^t, or h^N of a token that has halted. active: it goes on. total: p_1 + ... of a token that goes on. mean:
    the weighted sum so far. count: its steps. rest: R. Sums (total, mean, rest) are in float32 at least.
    """

    hidden: Tensor
    active: Tensor
    total: Tensor
    mean: Tensor
    count: Tensor
    rest: Tensor

    @classmethod
    def before(cls, x: Tensor, key_mask: Tensor | None) -> "Halting":
        """Before the first step: every real token goes on."""
        wide = x.new_zeros(x.shape, dtype=accumulation_dtype(x.dtype))
        zero = wide.new_zeros(x.shape[:2])
        active = torch.ones_like(zero, dtype=torch.bool) if key_mask is None else key_mask
        return cls(x, active, zero, wide, torch.zeros_like(zero, dtype=torch.long), zero)


class _Run:
    """The blocks in one call, step by step.

    Attributes:
        past: slots that were read before.
        losses: of each block, added up over the steps.
    """

    def __init__(self, blocks: Sequence[Block], transitions: nn.ModuleList, threads: Threads, tokens: Tokens) -> None:
        self.blocks, self.transitions, self.tokens = blocks, transitions, tokens
        self.old = [state if isinstance(state, States) else None for state in threads.states]
        self.new: list[dict[str, State]] = [{} for _ in blocks]
        self.convolved: list[dict[str, State]] = [{} for _ in blocks]
        self.past = 0 if self.old[0] is None else self.old[0].length
        self.losses: list[dict[str, Tensor]] = [{} for _ in blocks]

    def step(self, step: int, x: Tensor, active: Tensor | None = None, *, last: int | None = None) -> Tensor:
        """Hidden states after the blocks, or after all but the last.

        Args:
            active: the tokens that have not halted, whose queries alone count where a cache policy weighs; None: all.
        """
        for at, block in enumerate(self.blocks[:last]):
            counted = None if block.attention.cache is None else active
            output = block(x, **self._given(at, step), counted=counted)
            if output.state is not None:
                self.new[at][str(step)] = output.state
            for name, loss in output.losses.items():
                self.losses[at][name] = self.losses[at][name] + loss if name in self.losses[at] else loss
            x = output.hidden
            if self.transitions:
                x = self._behind(at, step, x)
        return x

    def _behind(self, at: int, step: int, x: Tensor) -> Tensor:
        """The convolutions behind a block."""
        transition, old = cast(Transition, self.transitions[at]), self.old[at]
        x, self.convolved[at][str(step)] = transition(
            x,
            key_mask=self.tokens.key_mask,
            causal=self.blocks[at].attention.attention.heads.causal,
            state=None if old is None else cast(States, old["transitions"])[str(step)],
        )
        return x

    def remember(self, step: int, x: Tensor, active: Tensor) -> None:
        """Keys and values of a step that changes no token, where a state keeps them."""
        if self.transitions and self.old[0] is not None:
            self.step(step, x, active)
        elif self.old[0] is not None:
            x = self.step(step, x, active, last=-1)
            at = len(self.blocks) - 1
            self.new[at][str(step)] = self.blocks[at].remember(x, **self._given(at, step))

    def states(self) -> list[State | None]:
        """Of each block, what every step left."""
        if self.transitions:
            for new, convolved in zip(self.new, self.convolved, strict=True):
                new["transitions"] = States(convolved)
        return [None if old is None else States(new) for old, new in zip(self.old, self.new, strict=True)]

    def _given(self, at: int, step: int) -> dict[str, Any]:
        old = self.old[at]
        return {**self.tokens.given(self.blocks[at], at), "state": None if old is None else old[str(step)]}
