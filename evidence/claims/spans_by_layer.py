"""Lower layers learn short spans, upper layers long ones.

Claim: Where every head learns how far it looks and pays for it, the heads of lower layers look at a few neighbours, and
the heads that look far are in upper layers.
Source: Sukhbaatar et al. 2019, sections 2.2 and 3, figures 3 and 4
Control: Two look-ups, of which the first says what the second is to ask for. In one task the token before is needed
first, and then a table that is far: a model of two layers that was trained with a short lower and a long upper span,
and whose spans are then all opened, finds these again. In the other one a far table is asked first, and then the token
before, and spans must come out the other way round: the measurement sees both orders, and no layer is long by itself.
The trainings on letters are over, and one of twice the steps leaves the order where it is.
Measured: Spans z of decoders of three layers of two heads after training on letters of the bundled addresses, all of 16
letters at the beginning, whose sum over layers of the mean of heads is paid for from the first step. Order: spans of
the top layer less those of the bottom layer, as a share of both. The published networks have 12 and 24 layers, spans up
to 8,192, and a thousand times the training.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, samples
from evidence.claims._plateau import FINISHED, change, change_with_steps, lasting
from evidence.claims._training import decoder, trained
from regard.attention.sparse.adaptive_span import AdaptiveSpan
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages
from regard_lab.tasks.base import IGNORE

First = Literal["near", "far"]
"""what is looked up first"""
ORDER = 0.2
"""share of their sum by which spans of the top layer exceed those of the bottom layer where there is an order"""


class Learned(NamedTuple):
    """spans: mean z of each layer, in letters. bits: per letter of new text. nats: of every step."""

    spans: list[float]
    bits: float
    nats: list[float]


class SpansByLayer(Claim):
    controls = (
        Control("near first", "1 if a near look-up, then a far one is seen", 1.0, tolerance=0.0, small=False),
        Control("far first", "1 if a far look-up, then a near one is seen", 1.0, tolerance=0.0, small=False),
        lasting(2 * ORDER),
        FINISHED,
    )
    findings = (
        Finding("order", "letters: (top - bottom) / (top + bottom) span", at_least=ORDER),
        Finding("letters", "letters: span, top - bottom layer", at_least=0.0, states=False),
    )
    least_seeds = 8
    revised = Revision(
        "After 300 steps of letters no order was seen (0.02, -0.18 to 0.22), and in one seed of five twice the "
        "steps changed it by 0.61, where 0.4 were allowed. There are 600 steps and 8 seeds now, whose mean the control "
        "asks. Bounds and the other controls are as they were.",
        (0, 1, 2, 3, 4, 910, 911, 912, 913),
    )
    plots = (
        Plot("spans", "Spans", "layer", "mean span of its heads, in tokens"),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    dim: int = setting(32, tiny=16)
    layers: int = setting(3, tiny=2)
    heads: int = 2
    length: int = setting(64, tiny=32)
    ramp: int = 2
    initial: float = 16.0
    """span of every head at the beginning, in letters"""
    price: float = 1e-5
    """nats of a letter of span"""
    steps: int = setting(600, tiny=20)
    batch: int = setting(16, tiny=4)
    rows: int = setting(200, tiny=20)
    """of held-out text"""
    learning_rate: float = 1e-2
    symbols: int = 3
    """of the tables that are looked up"""
    gap: int = 8
    """slots that nobody sees, between the table and the queries"""
    queries: int = 4
    learn: int = setting(250, tiny=20)
    """steps with the spans that are needed"""
    settle: int = setting(250, tiny=20)
    """steps after all spans were opened"""
    task_price: float = 4e-3
    """nats of a token of span"""
    task_rate: float = 6e-3

    def observe(self, seed: int) -> Observation:
        near, far = (self.settled(first, seed) for first in ("near", "far"))
        found = self.learned(self.steps, seed)

        def order(steps: int) -> float:
            return ordered(found.spans if steps == self.steps else self.learned(steps, seed).spans)

        values = {
            "order": ordered(found.spans),
            "letters": found.spans[-1] - found.spans[0],
            "near first": float(ordered(near) >= ORDER),
            "far first": float(ordered(far) <= -ORDER),
            "lasting": change_with_steps(order, self.steps),
            "unfinished": change(found.nats),
            "bits": found.bits,
            **{f"span of layer {at}": z for at, z in enumerate(found.spans, 1)},
            **{f"near first, layer {at}": z for at, z in enumerate(near, 1)},
            **{f"far first, layer {at}": z for at, z in enumerate(far, 1)},
        }
        lines = {"letters": found.spans, "near first": near, "far first": far}
        curves = {
            "spans": {name: (list(range(1, len(line) + 1)), line) for name, line in lines.items()},
            "loss": {"letters": averages(found.nats)},
        }
        return Observation(values, curves)

    def learned(self, steps: int, seed: int) -> Learned:
        """Spans after so many steps of training on letters."""
        initial = self.initial / self.length
        model = decoder(
            self,
            LETTERS,
            seed,
            attention=f"adaptive_span(max_span={self.length}, ramp={self.ramp}, initial={initial})",
            max_length=self.length,
        )
        draw = generator(seed, "train")

        def loss() -> tuple[Tensor, Tensor]:
            text = samples("train", self.batch, self.length, draw)
            got = model(text[:, :-1])
            return cross_entropy(got.logits.mT, text[:, 1:]), self.price * got.losses["span"]

        nats = trained(model, loss, steps=steps, learning_rate=self.learning_rate)
        new = samples("valid", self.rows, self.length, generator(seed, "valid"))
        with torch.no_grad():
            bits = float(cross_entropy(model(new[:, :-1]).logits.mT, new[:, 1:])) / math.log(2)
        return Learned(spans_of(model), bits, nats)

    def settled(self, first: First, seed: int) -> list[float]:
        """Spans of two layers that learned the task with the spans that it needs, and were then opened."""
        whole = self.symbols + self.gap + 2 * self.queries
        most = 4 * whole
        model = decoder(
            self,
            1 + self.symbols**2 + 2 * self.symbols,
            seed,
            targets=self.symbols,
            tied=False,
            heads=1,
            layers=2,
            attention=f"adaptive_span(max_span={most}, ramp=4)",
            position="learned",
            mlp_dim=2 * self.dim,
            bias=True,
            max_length=whole,
        )
        draw = generator(seed, "train")
        spans = [mechanism.span for mechanism in adaptive(model)]

        def phase(steps: int, price: float, *tokens: float) -> None:
            with torch.no_grad():
                for span, value in zip(spans, tokens, strict=True):
                    span.fill_(value / most)

            def loss() -> Tensor:
                asked, targets = self.looked_up(first, 2 * self.batch, draw)
                got = model(asked, key_mask=asked != 0)
                return cross_entropy(got.logits.mT, targets, ignore_index=IGNORE) + price * got.losses["span"]

            for span in spans:
                span.requires_grad_(price > 0)
            trained(model, loss, steps=steps, learning_rate=self.task_rate)

        phase(self.learn, 0.0, *((0.0, float(whole)) if first == "near" else (float(whole), 0.0)))
        phase(self.settle, self.task_price, float(whole), float(whole))
        return spans_of(model)

    def looked_up(self, first: First, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows of a table of a random f, slots that nobody sees (0), and queries of two tokens, a and then b.

        Asked at b: f(a + b) where the near one is first, and f(a) + f(b) where f is, which each token looks up.
        """
        size = self.symbols
        f = torch.randint(size, (count, size), generator=draw)
        pairs = torch.randint(size, (count, self.queries, 2), generator=draw)
        if first == "near":
            answers = f.gather(1, pairs.sum(-1) % size)
        else:
            answers = f.gather(1, pairs.flatten(1)).view_as(pairs).sum(-1) % size
        table = 1 + torch.arange(size) * size + f
        asked = 1 + size**2 + pairs + torch.tensor([0, size])
        tokens = torch.cat([table, table.new_zeros(count, self.gap), asked.flatten(1)], 1)
        targets = torch.full_like(tokens, IGNORE)
        targets[:, size + self.gap + 1 :: 2] = answers
        return tokens, targets


def adaptive(model: LanguageModel) -> list[AdaptiveSpan]:
    """The mechanisms of the layers, from the lowest on."""
    return [mechanism for mechanism in model.mechanisms if isinstance(mechanism, AdaptiveSpan)]


def spans_of(model: LanguageModel) -> list[float]:
    """Mean span of the heads of each layer, in tokens, from the lowest on."""
    return [float(mechanism.z.detach().mean()) for mechanism in adaptive(model)]


def ordered(spans: list[float]) -> float:
    """From -1 to 1: the top layer's span less the bottom layer's, as a share of both; 0 where both are 0.

    Example:
        >>> ordered([1.0, 8.0, 3.0])
        0.5
    """
    total = spans[0] + spans[-1]
    return (spans[-1] - spans[0]) / total if total else 0.0
