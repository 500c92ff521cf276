"""Each block once, in order, until the model is sure of a token."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.composite import States
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.options import weight
from regard.core.precision import accumulation_dtype
from regard.core.state import State, Summary
from regard.models.blocks import Block
from regard.models.depth._base import NOTHING, Looped, Readout, Threads, Tokens
from regard.models.depth._leaving import Leaving, of_some, taken
from regard.models.depth._lessons import Answers, Weights, balanced, best, exit_weights, log_geometric, smoothed

LEARNT = ("classifier", "geometric", "multinomial", "sequence")
"""confidences that have weights"""
PLANNED = ("multinomial", "sequence")
"""confidences that say at once how many blocks a token takes"""


@final
class EarlyExit(Leaving):
    """h^n = block_n(h^{n-1}) until c^n >= lambda'(t); from then on a token keeps its hidden state.

    Confidence c^n after block n, of each token t by itself:

    - `softmax`: the gap between the two largest probabilities that exit n gives.
    - `saturation`: cos(h^n, h^{n-1}), from the second block on.
    - `classifier`: sigmoid(w . h^n + b), one w for all blocks, which learns whether exit n says what the last one says;
      its gradient ends at h^n, and tokens that agree and that do not weigh the same.
    - `geometric`: chi^n = sigmoid(w . h^n + b), with q(n) = chi^n prod_{n' < n} (1 - chi^n').
    - `multinomial`: q = softmax(W h^1 + b); a token leaves at argmax_n q(n), whatever the threshold below 1.
    - `sequence`: q = softmax(W m + b) in the same way, with m the mean of what this token and those before it entered
      the first block with. (The published m is that of an encoded source, which a decoder does not have.)

    With `decaying`, lambda'(t) = clip(0.9 lambda + 0.1 exp(-temperature t / horizon), 0, 1): an early mistake spoils
    more of a text than a late one.

    Exits. The model's own last norm and output layer read h^n; with heads='layer', they read h^n + A_n h^n + a_n, with
    a matrix for each exit but the last that starts at 0. (The published heads are output layers of their own.)

    Training, in decoders. exits='aligned': every token takes every block, and the objective is proportional to
    sum_n w_n CE_n + alpha choice: the loss `exits` is the mean of the CE of the exits but the last, whose own the model
    has, and its weight is the share that they have. exits='mixed': every token leaves after a number of blocks that is
    drawn anew for every call, so that blocks above see the keys of copied states, as they will in use. The last three
    confidences learn from an oracle, which knows the targets: the loss `choice` is -log q(n*), with
    n* = argmax_n s^n_t - penalty n, the lowest of equal ones, and s the log likelihood of the target or whether exit n
    is right; in `sequence` the sum over the tokens, in the others sum_t' exp(-(t - t')^2 / smoothing) s^n_t'.

    Blocks that a token skips take their keys from the state that it left with, h^n copied upwards, so that later
    tokens find every slot. Tokens of a batch leave at different depths, and causal attention stays causal; a block
    that no token of a call needs is left out but for its keys. Other than in mixed training every token takes every
    block in training, as does one at lambda = 1.

    Cost: of every token the MLPs of its blocks, and for `softmax` an output layer after each but the last; averages of
    all tokens up to the last of a call to leave; the keys of every block; in training an output layer for each that
    learns. State: that of the blocks, and for `sequence` a sum.

    Raises:
        ConfigError: reversible blocks, whose stream is two, or a memory; `softmax` or what learns from targets in a
            model without an output layer; options that have no use together.

    Source: Schuster et al. 2022, section 3, and Elbayad et al. 2020, section 3. The published code of the former decays
    by lambda (0.9 + 0.1 exp(...)), which differs below lambda = 1; this is the formula of the paper. Heads: as the
    affine ones of Belrose et al. 2023, section 3.
    """

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"threshold": 0.05},
        {"threshold": 0.5, "confidence": "saturation"},
        {"threshold": 0.05, "decaying": True, "horizon": 8},
        {"threshold": 0.05, "exits": "aligned", "heads": "layer"},
        {"threshold": 0.5, "confidence": "classifier", "weights": "rising", "exits": "aligned"},
        {"threshold": 0.5, "confidence": "geometric", "exits": "aligned", "smoothing": 2.0, "penalty": 0.05},
        {"threshold": 0.5, "confidence": "multinomial", "oracle": "correctness", "heads": "layer", "exits": "aligned"},
        {"threshold": 0.5, "confidence": "multinomial", "whole": 2},
        {"threshold": 0.5, "confidence": "sequence", "penalty": 0.1, "whole": 3},
        {"threshold": 0.05, "exits": "mixed", "heads": "layer"},
        {"thresholds": (0.03, None, 0.06)},
    )

    threshold: Annotated[float, Ge(0), Le(1)] = 1.0
    """lambda: a token leaves once its confidence is as high; 1: none does"""
    thresholds: tuple[float | None, ...] = ()
    """tau_n of each block but the last in place of lambda, None where no token leaves; none: lambda"""
    confidence: Literal["softmax", "saturation", "classifier", "geometric", "multinomial", "sequence"] = "softmax"
    """c: the gap between the two likeliest outputs, how little the last block turned the hidden state, or one that is
    learnt"""
    decaying: bool = False
    """whether the threshold falls along the text"""
    temperature: Annotated[float, Ge(0)] = 4.0
    """how fast it falls"""
    horizon: Annotated[int, Ge(1)] = 512
    """N of the fall: tokens of a long text"""
    whole: Annotated[int, Ge(0)] = 0
    """first tokens of a text that take every block, whatever their confidence: trained decoders attend much to the
    first one, so that a state copied there may cost the rest more than it saves"""
    exits: Literal["last", "aligned", "mixed"] = "last"
    """which are trained: the last alone, all of them on every token, or one that is drawn for every token"""
    weights: Weights = "uniform"
    """w_n of aligned exits: the same, or n / (1 + 2 + ...)"""
    heads: Literal["shared", "layer"] = "shared"
    """whether the output layer reads the hidden states of all exits alike, or through a matrix of each"""
    oracle: Literal["likelihood", "correctness"] = "likelihood"
    """s of the exit that a confidence learns to take"""
    penalty: Annotated[float, Ge(0)] = 0.0
    """what a block more costs the oracle"""
    smoothing: Annotated[float, Ge(0)] = 0.0
    """sigma: how far the oracle looks around, in squared slots; 0: at the token alone"""
    choice: Annotated[float, Ge(0)] = 0.1
    """alpha, weight of the loss of a confidence that is learnt, beside the mean of the exits' losses"""
    chooser: nn.Linear = weight()
    """w and b, or W and b, of a confidence that is learnt"""
    maps: nn.ModuleList = weight()
    """A_n and a_n, of each exit but the last"""

    def setup(self) -> None:
        super().setup()
        self._together()
        dim, layers = self.config.dim, self.config.layers
        self.maps = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers - 1) if self.heads == "layer")
        if self.confidence in LEARNT:
            self.chooser = nn.Linear(dim, layers if self.confidence in PLANNED else 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()

    def _together(self) -> None:
        """Refuse options that have no use together."""
        if self.heads == "layer" and self.exits == "last":
            raise ConfigError("early_exit(heads='layer') are trained with exits='aligned' or exits='mixed'; add it")
        if self.confidence in LEARNT and self.exits == "mixed":
            raise ConfigError(
                f"early_exit(confidence={self.confidence!r}) learns from all exits of a token, and exits='mixed' has "
                "one of each; use exits='aligned'"
            )
        if self.decaying and self.confidence in PLANNED:
            raise ConfigError(
                f"early_exit(confidence={self.confidence!r}) says at once after how many blocks a token leaves, "
                "whatever the threshold; leave decaying out"
            )
        if self.learns and self.config.layers < 2:
            raise ConfigError("early_exit has no exit to train below the last in a model of one layer; use layers=2")
        if self.thresholds:
            count = self.config.layers - 1
            if len(self.thresholds) != count:
                raise ConfigError(
                    f"thresholds are {count} numbers or None, one for every block but the last: {self.thresholds}"
                )
            if self.decaying or self.confidence in PLANNED:
                raise ConfigError(
                    "thresholds of each block do not decay, and planned exits ask for none; leave one out"
                )

    @property
    def places(self) -> bool:
        """Whether the threshold depends on the slot."""
        return self.decaying or self.whole > 0

    @property
    def learns(self) -> bool:
        """Whether it learns from targets."""
        return self.exits == "aligned" or self.confidence in LEARNT

    @property
    def obeys(self) -> bool:
        """It takes the depth of every token from whoever calls it."""
        return True

    @property
    def asks(self) -> bool:
        """Whether one threshold says where tokens leave: unless every block has its own, or exits are planned."""
        return not self.thresholds and self.confidence not in PLANNED

    @property
    def reads_out(self) -> bool:
        """Whether confidence or training is the output layer's."""
        return self.confidence == "softmax" or self.learns

    @property
    def losses(self) -> Mapping[str, float]:
        """The weights of `exits` and `choice`: the last exit, whose loss the model has, weighs 1."""
        weights = exit_weights(self.weights, self.config.layers)
        aligned = self.exits == "aligned"
        lower = {"exits": sum(weights[:-1]) / weights[-1]} if aligned else {}
        own = self.choice / weights[-1] if aligned else self.choice
        return {**lower, **({"choice": own} if self.confidence in LEARNT else {})}

    def initial_state(
        self, blocks: Sequence[Block], batch: int, *, device: torch.device, dtype: torch.dtype
    ) -> list[State]:
        """Of each block; with the first, what `sequence` has read."""
        states = super().initial_state(blocks, batch, device=device, dtype=dtype)
        if self.confidence == "sequence":
            wide = accumulation_dtype(dtype)
            total = torch.zeros(batch, self.config.dim, device=device, dtype=wide)
            states[0] = States({"block": states[0], "read": Summary({"sum": total, "count": total[:, 0].clone()})})
        return states

    @property
    def most(self) -> int:
        """Every block once."""
        return self.config.layers

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        tokens: Tokens = NOTHING,
        readout: Readout | None = None,
        targets: Tensor | None = None,
        depths: Tensor | None = None,
    ) -> Looped:
        """Blocks until every token has left.

        Args:
            blocks, x, threads, tokens: as `Depth.forward`.
            readout: for confidence='softmax', and to learn.
            targets: (batch, length), what to learn from; negative: nothing.
            depths: (batch, length), after how many blocks each token leaves; None: as its confidence says.
        """
        self._require(readout, targets, depths)
        first = threads.states[0]
        slots = tokens.slots(x, 0 if first is None else first.length)
        limit = self.limit(slots)
        if self.training and self.exits == "mixed" and depths is None:
            depths = torch.randint(1, len(blocks) + 1, x.shape[:2], device=x.device)
        never = self.threshold == 1 and not self.thresholds and self.notes is None
        stays = depths is None and (self.training or never)
        states = list(threads.states)
        mean = read = None
        if self.confidence == "sequence":
            together = cast("States | None", first)
            mean, read = self.means(x, tokens.key_mask, None if together is None else cast(Summary, together["read"]))
            states[0] = None if together is None else together["block"]
            depths = self.plan(mean, slots) if depths is None and not stays else depths

        def leaves(at: int, active: Tensor, x: Tensor, before: Tensor) -> Tensor:
            nonlocal depths
            if at == 0 and self.confidence == "multinomial" and depths is None:
                depths = self.plan(x, slots)
            if depths is not None:
                return active & (depths > at + 1)
            of_exit = None if readout is None else partial(self.answered, at, readout)
            sureness = partial(self.sureness, readout=of_exit, first=at == 0)
            return self.goes_on(
                at, active, x, lambda asked: of_some(asked, sureness, x, before), self.asked(at, slots, limit)
            )

        left = self.until_left(
            blocks,
            x,
            states,
            leaves=None if stays else leaves,
            tokens=tokens,
        )
        states = left.states
        if read is not None and first is not None:
            states[0] = States({"block": cast(State, states[0]), "read": read})
        exits = left.exits if self.learns else []
        own = {} if targets is None else self.taught(exits, mean, cast(Readout, readout), targets, tokens.key_mask)
        hidden = self.headed(left.hidden, left.steps)
        return Looped(hidden, states, list(threads.memories), left.losses, tuple(exits), own, left.steps)

    def _require(self, readout: Readout | None, targets: Tensor | None, depths: Tensor | None) -> None:
        teaches = self.training and self.learns
        if readout is None and (teaches or self.confidence == "softmax"):
            raise ConfigError("confidence='softmax' needs the output layer of a model; use 'saturation' without one")
        if teaches and targets is None:
            raise ConfigError("early_exit learns from targets in training; give them, or call eval()")
        if teaches and depths is not None:
            raise UnsupportedError("early_exit learns from every exit of a token; give depths in eval(), or to 'mixed'")

    def mapped(self, at: int, hidden: Tensor) -> Tensor:
        """What the output layer reads of hidden states that leave after block `at`, from 0."""
        return hidden + self.maps[at](hidden) if at < len(self.maps) else hidden

    def headed(self, hidden: Tensor, steps: Tensor) -> Tensor:
        """What the output layer reads of hidden states that left after so many blocks."""
        read = hidden
        for count in taken(steps, len(self.maps)):
            read = torch.where((steps == count)[..., None], self.mapped(count - 1, hidden), read)
        return read

    def answered(self, at: int, readout: Readout, hidden: Tensor) -> Tensor:
        """The logits of the exit after block `at`, from 0."""
        return readout(self.mapped(at, hidden))

    def sureness(self, hidden: Tensor, before: Tensor, readout: Readout | None, *, first: bool) -> Tensor:
        """c^n (batch, length) of the hidden states after a block and before it; `first`: there is no block before.

        Of the confidences that are not a plan; `readout` gives the logits of the exit behind the block.
        """
        wide = accumulation_dtype(hidden.dtype)
        if self.confidence == "softmax":
            assert readout is not None
            likely = readout(hidden).to(wide).softmax(-1).topk(2).values
            return likely[..., 0] - likely[..., 1]
        if self.confidence in LEARNT:
            return self.chooser(hidden)[..., 0].to(wide).sigmoid()
        if first:  # h^0 is an embedding, and not what a block made
            return hidden.new_full(hidden.shape[:2], float("-inf"), dtype=wide)
        return F.cosine_similarity(hidden.to(wide), before.to(wide), dim=-1)

    def plan(self, read: Tensor, slots: Tensor) -> Tensor:
        """After how many blocks each token leaves, argmax_n q(n), from what `multinomial` or `sequence` reads.

        Tokens in the first slots of a text take every block.
        """
        planned = self.chooser(read).argmax(-1) + 1
        return planned.masked_fill(slots < self.whole, self.config.layers) if self.whole else planned

    def means(self, x: Tensor, key_mask: Tensor | None, past: Summary | None) -> tuple[Tensor, Summary]:
        """m of every token, and what the next call goes on with."""
        wide = x.to(accumulation_dtype(x.dtype))
        real = torch.ones_like(wide[..., 0]) if key_mask is None else key_mask.to(wide.dtype)
        if past is None:
            past = Summary({"sum": wide.new_zeros(len(wide), wide.shape[2]), "count": wide.new_zeros(len(wide))})
        entered = wide.masked_fill(real[..., None] == 0, 0)
        total = torch.cat([past["sum"][:, None], entered], 1).cumsum(1)
        count = torch.cat([past["count"][:, None], real], 1).cumsum(1)
        after = Summary({"sum": total[:, -1], "count": count[:, -1]}, past.length + x.shape[1])
        return (total / count.clamp(min=1)[..., None])[:, 1:].to(x.dtype), after

    def limit(self, slots: Tensor) -> Tensor | float:
        """lambda' of tokens in these slots."""
        limit: Tensor | float = self.threshold
        if self.decaying:
            fall = torch.exp(-self.temperature * slots.double() / self.horizon)
            limit = 0.9 * self.threshold + 0.1 * fall
        return torch.where(slots < self.whole, float("inf"), limit) if self.whole else limit

    def asked(self, at: int, slots: Tensor, limit: Tensor | float) -> Tensor | float:
        """What tokens in these slots leave at behind block `at`, from 0; `limit` where no block has its own."""
        if not self.thresholds:
            return limit
        own = self.thresholds[at]
        least = float("inf") if own is None else own
        return torch.where(slots < self.whole, float("inf"), least) if self.whole else least

    def taught(
        self,
        exits: Sequence[Tensor],
        mean: Tensor | None,
        readout: Readout,
        targets: Tensor,
        key_mask: Tensor | None,
    ) -> dict[str, Tensor]:
        """The losses, from h^n of every exit and m."""
        answers = Answers.of([self.answered(at, readout, x) for at, x in enumerate(exits)], targets, key_mask)
        own: dict[str, Tensor] = {}
        if self.exits == "aligned":
            own["exits"] = answers.below_last(exit_weights(self.weights, len(exits)))
        if self.confidence == "classifier":
            agrees = answers.likeliest[..., :-1] == answers.likeliest[..., -1:]
            own["choice"] = balanced(self.agreement(exits), agrees, answers.counted)
        elif self.confidence in LEARNT:
            log_q, taken = self.log_odds(exits, mean), self.wanted(answers)[..., None]
            own["choice"] = answers.mean(-log_q.gather(-1, taken)[..., 0])
        return own

    def agreement(self, exits: Sequence[Tensor]) -> Tensor:
        """The logits of `classifier` at every exit but the last; the model learns nothing of them."""
        return torch.cat([self.chooser(x.detach()) for x in exits[:-1]], -1)

    def log_odds(self, exits: Sequence[Tensor], mean: Tensor | None) -> Tensor:
        """log q, (batch, length, exits), of the confidences that learn from an oracle."""
        if self.confidence == "geometric":
            logits = torch.cat([self.chooser(x) for x in exits[:-1]], -1)
            return log_geometric(logits.to(accumulation_dtype(logits.dtype)))
        logits = self.chooser(exits[0] if mean is None else mean)
        return logits.to(accumulation_dtype(logits.dtype)).log_softmax(-1)

    def wanted(self, answers: Answers) -> Tensor:
        """n*, from 0, of every token, or of the text that it is in."""
        scores = -answers.nats.detach() if self.oracle == "likelihood" else answers.right.to(answers.nats.dtype)
        if self.confidence == "sequence":
            total = scores.masked_fill(~answers.counted[..., None], 0).sum(1, keepdim=True)
            return best(total, self.penalty).expand(scores.shape[:2])
        return best(smoothed(scores, self.smoothing, answers.counted), self.penalty)
